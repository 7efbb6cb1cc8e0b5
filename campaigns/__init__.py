"""Campaigns: long, seeded runs that look for faults. `make fuzz` and `make chaos` start them."""

import os

# Before anything that starts threads is imported: the campaigns fork.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
