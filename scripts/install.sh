#!/bin/sh
# Creates a virtual environment and installs into it:  scripts/install.sh FOLDER REQUIREMENT...
#
# On Linux the public index's torch is the CUDA build, with about 2.7 GB of packages that are of no use without a GPU.
# Without a GPU this script therefore takes torch from PyTorch's CPU index, unless pip is already configured to find a
# torch file of its own (find-links) or the index does not answer within three seconds. Then pip installs torch as usual.
set -eu
cd "$(dirname "$0")/.."
venv=$1
shift

cpu_index=https://download.pytorch.org/whl/cpu
torch=$(grep '^torch==' constraints.txt)

pip() {
    "$venv/bin/python" -m pip --disable-pip-version-check "$@"
}

has_gpu() {
    nvidia-smi >/dev/null 2>&1
}

has_local_torch() { # installed already, or a file that pip finds without any index
    pip install --dry-run --quiet --no-index --no-deps "$torch" >/dev/null 2>&1
}

cpu_index_answers() {
    timeout 5 "$venv/bin/python" -c "import urllib.request as r; r.urlopen('$cpu_index/torch/', timeout=3)" 2>/dev/null
}

[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
if [ "$(uname)" = Linux ] && ! has_gpu && ! has_local_torch && cpu_index_answers; then
    pip install --quiet --no-deps --index-url "$cpu_index" "$torch" 2>/dev/null ||
        echo "$torch could not be installed from PyTorch's CPU index; taking the default build" >&2
fi
pip install --quiet --quiet --constraint constraints.txt "$@"
