"""A family of Transformers models that anyorder does not know yet: say which class computes it, and what differs.

    anyorder infill --plugin own_family.py --model FOLDER --order margin 'w1 [MASK] w3'

These checkpoints are RoBERTa's under another `model_type`, and their weights begin with `encoder.` instead of
`roberta.`. Positions start after the id of the padding token, as in RoBERTa. `Family` lists everything that can differ.
"""

import anyorder

family = anyorder.Family("RobertaForMaskedLM", positions_after_padding=True, renames={r"^encoder\.": "roberta."})
anyorder.register_family("my-roberta", family)
