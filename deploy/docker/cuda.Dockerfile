# docker build -f deploy/docker/cuda.Dockerfile -t asap-ray:0.1.0-cuda .
# The CUDA backend is not built yet (docs/limits.md): today this image serves on its CPUs, and `device: cuda` is refused.
# CUDA's libraries come with torch's wheel; the base has what the driver of the host is reached through.
FROM nvidia/cuda:12.8.1-base-ubuntu24.04 AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN python3 -m venv /opt/asap-ray \
 && /opt/asap-ray/bin/pip install --no-cache-dir -c constraints.txt torch pybind11 setuptools wheel \
 && /opt/asap-ray/bin/pip install --no-cache-dir -c constraints.txt --no-build-isolation '.[grafana]'

FROM nvidia/cuda:12.8.1-base-ubuntu24.04
# tini reaps the processes that `ray stop` waits for; wget is what KubeRay's probes call.
RUN apt-get update && apt-get install -y --no-install-recommends python3 tini wget && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home asap
COPY --from=build /opt/asap-ray /opt/asap-ray
# In a login shell, as KubeRay starts Ray, PATH is the system's own.
RUN ln -s /opt/asap-ray/bin/asap-ray /opt/asap-ray/bin/ray /opt/asap-ray/bin/serve /usr/local/bin/
ENV PATH=/opt/asap-ray/bin:$PATH RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 OMP_NUM_THREADS=1
USER 10001
WORKDIR /home/asap
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/tini", "--", "asap-ray"]
CMD ["--help"]
