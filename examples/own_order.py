"""An order, a schedule, a revision and a reward of your own, each by one decorator.

    anyorder translate --plugin own_order.py --model de-en --direction de-en --order middle-out --trace 'Guten Morgen, Welt!'
    anyorder translate --plugin own_order.py --model de-en --direction de-en --schedule thirds 'Guten Morgen, Welt!'
    anyorder translate --plugin own_order.py --model de-en --direction de-en --revision doubt 'Guten Morgen, Welt!'
    anyorder learn-order --plugin own_order.py --model de-en --direction de-en --data data/news --rl.reward brevity --out runs/brief

An order gives every position a score; the masked position with the highest score is filled next. An order that looks at
the model's predictions says so: `needs="logits"`.
"""

import anyorder


@anyorder.register_order("middle-out")
def middle_out(state):
    """From the middle outwards."""
    middle = (state.lengths[:, None] - 1) / 2
    return -(state.positions - middle).abs()


@anyorder.register_order("two-best", needs="logits")
def two_best(state):
    """The position whose two best tokens are furthest apart, in log-probability."""
    best = state.logits.log_softmax(-1).topk(2).values
    return state.spread(best[:, 0] - best[:, 1])


@anyorder.register_schedule("thirds")
class Thirds(anyorder.FixedSchedule):
    """A third of what is still masked in each step."""

    def counts(self, remaining, total, step):
        return (remaining + 2) // 3


@anyorder.register_revision("doubt")
class Doubt(anyorder.Revision):
    """Masks unlikely tokens again, during the first half of the steps."""

    def last_step(self, length):
        return length // 2

    def remask(self, state):
        return state.filled & (state.logprobs < -3)


@anyorder.register_reward("brevity")
def brevity(hypotheses, references):
    """The fewer characters, the better."""
    return [-float(len(hypothesis)) for hypothesis in hypotheses]
