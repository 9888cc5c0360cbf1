"""Ring attention: one sequence over several processes, exact, with no process holding all of it.

    attention   the public functions
    labels      what has to be the same in every process
    steps       the steps forward and backward, as one operation of autograd
    links       a process and its two neighbours: send on, receive, within a time limit
    tiles       the queries of one process and a block of keys that visits it

May import every other torch file but attn.torch.fused.
"""

from attn.torch.ring.attention import RingTally, ring_attention, ring_positions

__all__ = ["RingTally", "ring_attention", "ring_positions"]
