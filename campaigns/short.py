"""A few cases of both campaigns on the same seed files: what the test suite runs.

python -m campaigns.short
"""

import sys

from campaigns import chaos, fuzz
from campaigns.sandbox import import_everything, seed_files

SEED = 7
CASES = 20
STORIES = {"a": 23, "c": 33, "d": 3}
"""Parts of chaos, and the story of each that is played."""


def main() -> int:
    """The number of failures, each of which was printed."""
    import_everything()
    with seed_files(with_xlm=False) as files:
        fuzzing = fuzz.Campaign(SEED, files, files.with_name("work"))
        failures = [fuzz.failure_line(SEED, outcome) for outcome in fuzzing.run(range(CASES), jobs=2) if outcome.fault]
        print("\n".join(failures))
        stage = chaos.Stage(files, files.with_name("stage"))
        for part, story in STORIES.items():
            failures += chaos.campaign(stage, SEED, [part], story)
    return min(len(failures), 1)


if __name__ == "__main__":
    sys.exit(main())
