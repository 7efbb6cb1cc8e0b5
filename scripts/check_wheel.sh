#!/bin/sh
# Installs the wheel in dist/ into a clean virtual environment and uses it from another folder. Run by `make check-wheel`.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

scripts/install.sh "$folder/venv" "$root"/dist/anyorder-*.whl
cd "$folder"
venv/bin/anyorder --version
text=$(venv/bin/anyorder translate --model de-en --direction de-en --order left-to-right 'Guten Morgen, Welt!')
echo "Guten Morgen, Welt! -> $text"
[ "$text" = 'Good morning, world!' ]
venv/bin/python -c 'import anyorder; assert "site-packages" in anyorder.__file__, anyorder.__file__'
