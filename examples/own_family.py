"""A family of Transformers models that anyorder does not know yet: say which class it is and where its output layer is.

    anyorder infill --plugin own_family.py --model FOLDER --order margin 'w1 [MASK] w3'

CamemBERT is RoBERTa under another name: positions start after the id of the padding token, and `lm_head` turns hidden
states into logits. `Family` lists everything that can differ.
"""

import anyorder

camembert = anyorder.Family("CamembertForMaskedLM", head=("lm_head",), positions_after_padding=True)
anyorder.register_family("camembert", camembert)
