"""One rule, the fastest kernel for it.

    paths       the public functions, and the choice between the kernels
    kernels     SDPA, FlexAttention, and SDPA on the strips that a rule leaves
    strips      the plan: some rows of queries with just the keys that they may see
    run         a plan carried out
    unseen      slots that take no part are emptied, without writing out the mask

May import every other torch file but attn.torch.ring.
"""

from attn.torch.fused.paths import fused_attention, fused_path

__all__ = ["fused_attention", "fused_path"]
