# docker build -f deploy/docker/cpu.Dockerfile -t asap-ray:0.1.0-cpu .
# Where the index serves torch built for CUDA by default, name one with its CPU build: --build-arg PIP_EXTRA_INDEX_URL=...
# docker run --rm -p 127.0.0.1:8000:8000 --shm-size 256m -v /models:/models:ro -e ASAP_API_KEY \
#   asap-ray:0.1.0-cpu serve --model /models/qwen3-moe --host 0.0.0.0
FROM python:3.11.14-slim-bookworm AS build
ARG PIP_EXTRA_INDEX_URL
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN python -m venv /opt/asap-ray \
 && /opt/asap-ray/bin/pip install --no-cache-dir -c constraints.txt torch pybind11 setuptools wheel \
 && /opt/asap-ray/bin/pip install --no-cache-dir -c constraints.txt --no-build-isolation '.[grafana]'

FROM python:3.11.14-slim-bookworm
# tini reaps the processes that `ray stop` waits for; wget is what KubeRay's probes call.
RUN apt-get update && apt-get install -y --no-install-recommends tini wget && rm -rf /var/lib/apt/lists/* \
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
