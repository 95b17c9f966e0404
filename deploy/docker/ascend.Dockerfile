# docker build -f deploy/docker/ascend.Dockerfile -t asap-ray:0.1.0-ascend .
# For Atlas A3; CHIP=910b is A2. NEVER BUILT OR RUN. Our kernels are not in it: no toolkit has compiled them yet, so run
# `make ascend` with the CANN of the base image, mount asap_ray/backends/ascend/built, and name it by `kernels:`.
# torch is the one that torch-npu is built for, whatever constraints.txt says.
# docker run: besides the models, /usr/local/Ascend/driver read-only, one --device /dev/davinciN a die, and
# --device /dev/davinci_manager --device /dev/devmm_svm --device /dev/hisi_hdc --group-add the driver's HwHiAiUser.
ARG CHIP=a3
FROM quay.io/ascend/cann:9.0.0-${CHIP}-ubuntu22.04-py3.11
ARG TORCH_NPU=2.13.0
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# tini reaps the processes that `ray stop` waits for; wget is what KubeRay's probes call.
RUN apt-get update && apt-get install -y --no-install-recommends g++ tini wget && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home asap
WORKDIR /src
COPY . .
RUN python3 -m venv /opt/asap-ray \
 && grep -v '^torch==' constraints.txt > /tmp/constraints.txt \
 && /opt/asap-ray/bin/pip install --no-cache-dir -c /tmp/constraints.txt \
      "torch==${TORCH_NPU}" "torch-npu==${TORCH_NPU}" pybind11 setuptools wheel \
 && /opt/asap-ray/bin/pip install --no-cache-dir -c /tmp/constraints.txt --no-build-isolation '.[grafana]' \
 && rm -rf /src /tmp/constraints.txt
# In a login shell, as KubeRay starts Ray, PATH is the system's own.
RUN ln -s /opt/asap-ray/bin/asap-ray /opt/asap-ray/bin/ray /opt/asap-ray/bin/serve /usr/local/bin/
ENV PATH=/opt/asap-ray/bin:$PATH RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 OMP_NUM_THREADS=1
USER 10001
WORKDIR /home/asap
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/tini", "--", "asap-ray"]
CMD ["--help"]
