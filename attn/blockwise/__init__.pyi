from attn import blockwise_attention as blockwise_attention
from attn import merge_attention as merge_attention
