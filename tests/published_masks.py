"""Masks of published models and methods, each rebuilt from its description: True = may attend.

`PUBLISHED` maps a name to a function of the length and its source. Lengths are free, so that no
mask passes by luck; a function may round its length to what its method needs.
"""

import numpy as np


def grid(n):
    return np.arange(n)[:, None], np.arange(n)[None]


def causal(n):
    q, k = grid(n)
    return k <= q


def runs(n, *lengths):
    """Ids of consecutive runs of these lengths, over and over, cut at n."""
    ids = np.repeat(np.arange(n), np.resize(lengths, n))
    return ids[:n]


def same(ids):
    return ids[:, None] == ids[None]


PUBLISHED = {}


def published(name, source):
    def note(function):
        PUBLISHED[name] = (function, source)
        return function

    return note


@published("GPT-2", "Radford et al. 2019; the lower triangle `bias` of modeling_gpt2")
def _(n):
    return causal(n)


@published("BERT", "Devlin et al. 2019: every token sees every real token of its padded row")
def _(n):
    lengths = np.array([n, n - 3, n // 2])
    return (np.arange(n) < lengths[:, None])[:, None, None] & np.ones((n, 1), bool)


@published("BERT, padded queries hidden too", "the outer product of the mask, as in Keras layers")
def _(n):
    real = np.arange(n) < n - 3
    return real[:, None] & real


@published("T5 decoder", "Raffel et al. 2020, figure 4: causal, and padded at the end")
def _(n):
    return causal(n) & (np.arange(n) < n - 2)


@published("T5 cross-attention", "Raffel et al. 2020: all real tokens of the source")
def _(n):
    return np.ones((n - 5, 1), bool) & (np.arange(n) < n - 2)


@published("prefix LM", "Raffel et al. 2020, figure 4; Liu et al. 2018")
def _(n):
    q, k = grid(n)
    return (k <= q) | (k < 2 * n // 3)


@published("PaliGemma", "Beyer et al. 2024, figure 2: image and prompt whole, answer causal")
def _(n):
    q, k = grid(n)
    return (k <= q) | (k < n // 2)


@published("UniLM, sequence to sequence", "Dong et al. 2019, figure 1: the source sees itself only")
def _(n):
    q, k = grid(n)
    return (k < n // 3) | ((k <= q) & (q >= n // 3))


@published("GLM", "Du et al. 2022, figure 2: the corrupted text whole, then the blanks in order")
def _(n):
    q, k = grid(n)
    return (k <= q) | (k < n - 5)


@published("Longformer", "Beltagy et al. 2020, section 3.1: a window, and global tokens both ways")
def _(n):
    q, k = grid(n)
    glob = np.isin(np.arange(n), [0, n // 2])
    return (abs(q - k) <= 2) | glob[:, None] | glob


@published("Longformer, dilated", "Beltagy et al. 2020, figure 2c")
def _(n):
    q, k = grid(n)
    return (abs(q - k) <= 4) & ((q - k) % 2 == 0)


@published("BigBird", "Zaheer et al. 2020, section 2: window, global and random blocks")
def _(n):
    block = np.arange(n) // 2
    blocks = block[-1] + 1
    i, j = grid(blocks)
    chosen = (abs(i - j) <= 1) | (i == 0) | (j == 0)
    for row, pick in enumerate(np.random.default_rng(n).integers(0, blocks, size=blocks)):
        chosen[row, pick] = True
    return chosen[block][:, block]


@published("ETC", "Ainslie et al. 2020: global tokens first, a window for the long input")
def _(n):
    q, k = grid(n)
    return (q < 3) | (k < 3) | (abs(q - k) <= 2)


@published("Star-Transformer", "Guo et al. 2019: a ring of neighbours and one hub")
def _(n):
    q, k = grid(n)
    ring = ((q - k) % n <= 1) | ((k - q) % n <= 1)
    return ring | (q == 0) | (k == 0)


@published("Mistral 7B", "Jiang et al. 2023; in transformers k > q - W beside causal")
def _(n):
    q, k = grid(n)
    return (k <= q) & (k > q - 4)


@published("Gemma 2", "Gemma Team 2024: layers with a window of half the context and without")
def _(n):
    q, k = grid(n)
    return np.stack([(k <= q) & (k > q - n // 2), k <= q])[None]


@published("Gemma 3 with images, global layers", "modeling_gemma3: causal, or of the same image")
def _(n):
    image = np.where(np.isin(np.arange(n), [2, 3, 4, 5, 8, 9, 10]), runs(n, 7), -1)
    return causal(n) | (same(image) & (image >= 0))


@published("Gemma 3 with images, local layers", "modeling_gemma3: the same, and k > q - W")
def _(n):
    q, k = grid(n)
    image = np.where(np.isin(np.arange(n), [2, 3, 4, 5, 8, 9, 10]), runs(n, 7), -1)
    return ((k <= q) | (same(image) & (image >= 0))) & (k > q - 4)


@published("EmbeddingGemma", "masking_utils of transformers: a window on both sides")
def _(n):
    q, k = grid(n)
    return abs(q - k) <= 3


@published("Llama 4, local layers", "create_chunked_attention_mask: causal in chunks")
def _(n):
    return causal(n) & same(runs(n, 5))


@published("gpt-oss", "openai/gpt-oss torch/model.py: k > q - 128 beside causal; here 3")
def _(n):
    q, k = grid(n)
    return np.stack([(k <= q) & (k > q - 3), k <= q])[:, None]


@published("Transfusion", "Zhou et al. 2024, figure 4: causal, whole within each image")
def _(n):
    image = np.where(runs(n, 3, 4) % 2 == 1, runs(n, 3, 4), -1)
    return causal(n) | (same(image) & (image >= 0))


@published("Show-o, images whole and text causal", "Xie et al. 2024, section 3.2: omni-attention")
def _(n):
    q, k = grid(n)
    image = (np.arange(n) >= 4) & (np.arange(n) < n - 2)
    return (k <= q) | (image[:, None] & image)


@published("Block diffusion", "Arriola et al. 2025, section 3.1: a noised and a clean copy")
def _(n):
    n = n // 2 * 2
    noised = np.arange(n) < n // 2
    block = np.tile(runs(n // 2, 3), 2)
    q, k = noised[:, None], noised[None]
    diagonal = same(block) & (q == k)
    offset = (block[:, None] > block) & q & ~k
    clean = (block[:, None] >= block) & ~q & ~k
    return diagonal | offset | clean


@published("MAR in random order", "Li et al. 2024, figure 3: groups of tokens in a random order")
def _(n):
    order = np.random.default_rng(n).permutation(n) // 3
    return order[None] <= order[:, None]


@published("XLNet, content stream", "Yang et al. 2019, figure 2: a random order, itself included")
def _(n):
    order = np.random.default_rng(n).permutation(n)
    return order[None] <= order[:, None]


@published("XLNet, the last to be predicted", "Yang et al. 2019: what is no target is seen by all")
def _(n):
    order = np.random.default_rng(n).permutation(n)
    return (order[None] <= order[:, None]) | (order[None] < n - 4)


@published("T-TA", "Shin et al. 2020: every token is predicted from all others")
def _(n):
    return ~np.eye(n, dtype=bool)


@published("StreamingLLM", "Xiao et al. 2023, figure 1d: the first four keys and a window")
def _(n):
    q, k = grid(n)
    return (k <= q) & ((k < 4) | (k > q - 4))


@published("Hymba", "Dong et al. 2024: meta tokens before a window")
def _(n):
    q, k = grid(n)
    return (k <= q) & ((k < 3) | (q - k < 5))


@published("Sparse Transformer, strided", "Child et al. 2019, section 4.3")
def _(n):
    q, k = grid(n)
    return (k <= q) & ((q - k < 4) | ((q - k) % 4 == 0))


@published("Sparse Transformer, fixed", "Child et al. 2019, section 4.3")
def _(n):
    q, k = grid(n)
    return (k <= q) & ((q // 4 == k // 4) | (k % 4 == 3))


@published("LongNet", "Ding et al. 2023, section 2.2: segments, within them every r-th")
def _(n):
    q, k = grid(n)
    near = q // 4 == k // 4
    far = (q // 8 == k // 8) & (q % 2 == 0) & (k % 2 == 0)
    return (k <= q) & (near | far)


@published("Dilated attention, one head", "Hassani and Shi 2022; every d-th key")
def _(n):
    q, k = grid(n)
    return (k <= q) & ((q - k) % 3 == 0)


@published("Packed texts, causal", "Krell et al. 2021; cu_seqlens of flash-attention")
def _(n):
    return causal(n) & same(runs(n, 3, 5, 2))


@published("Packed texts, padded, causal", "as before, with padding at the end that sees nothing")
def _(n):
    real = np.arange(n) < n - 3
    return causal(n) & same(runs(n, 4, 3)) & real & real[:, None]


@published("Packed texts, whole", "Warner et al. 2024, ModernBERT: unpadded sequences")
def _(n):
    return same(runs(n, 4, 3))


@published("Packed texts, window", "ModernBERT's local layers: a window within each text")
def _(n):
    q, k = grid(n)
    return same(runs(n, 6, 5)) & (abs(q - k) <= 1)


@published("Packed prefix LMs", "the prefix of each packed example whole")
def _(n):
    q, k = grid(n)
    ids = runs(n, 6, 5)
    start = np.array([np.flatnonzero(ids == i)[0] for i in ids])
    return same(ids) & ((k <= q) | (k - start[:, None] < 3))


@published("Left padding, causal", "generation in batches with transformers")
def _(n):
    starts = np.array([0, 3, n // 2])
    return (causal(n) & (np.arange(n) >= starts[:, None, None]))[:, None]


@published("Left padding, empty rows opened", "AttentionMaskConverter._unmask_unattended")
def _(n):
    mask = causal(n) & (np.arange(n) >= 3)
    return mask | ~mask.any(axis=1, keepdims=True)


@published("SpecInfer", "Miao et al. 2024, section 4.2: a token tree sees its ancestors")
def _(n):
    parents = [max(0, (i - 1) // 2) for i in range(n)]
    return tree(n, parents)


@published("Medusa", "Cai et al. 2024, section 2.1.2: a prompt, then the candidates as a tree")
def _(n):
    prompt = 4
    parents = [*range(-1, prompt - 1)]
    parents += [prompt - 1 if i < prompt + 3 else i - 3 for i in range(prompt, n)]
    return tree(n, parents)


def tree(n, parents):
    mask = np.eye(n, dtype=bool)
    for i in range(1, n):
        mask[i] |= mask[parents[i]]
    return mask


@published("Whisper, decoder to encoder", "Radford et al. 2022: all frames")
def _(n):
    return np.ones((n - 4, n), bool)


@published("wait-k", "Ma et al. 2019: target t sees the first t + k - 1 source words")
def _(n):
    q, k = np.arange(n - 3)[:, None], np.arange(n)
    return k < q + 3


@published("Monotone chunks", "Chiu and Raffel 2018, MoChA: a chunk that only moves on")
def _(n):
    end = np.cumsum(np.random.default_rng(n).integers(0, 3, size=n - 5)) + 1
    k = np.arange(n)
    return (k < end[:, None]) & (k >= end[:, None] - 3)


@published("Transformer-XL", "Dai et al. 2019: a memory before the segment, all of it visible")
def _(n):
    q, k = np.arange(n // 2)[:, None], np.arange(n)
    return k <= q + n - n // 2


@published("Perceiver AR", "Hawthorne et al. 2022: the last positions query the whole past")
def _(n):
    return causal(n)[-5:]


@published("A cache of fixed size", "StaticCache of transformers: prompt first, the rest empty")
def _(n):
    return causal(n)[: n // 2]


@published("VideoGPT", "Yan et al. 2021: frames in raster order")
def _(n):
    return causal(n)


@published("Frames, causal", "Magi-1 2025, CausVid 2024: a frame sees itself and earlier frames")
def _(n):
    q, k = grid(n)
    return k // 3 <= q // 3


@published("VAR", "Tian et al. 2024, figure 4: each scale sees itself and coarser ones")
def _(n):
    scale = np.searchsorted(np.cumsum([1, 4, 9, 16, 25]), np.arange(n), side="right")
    return scale[None] <= scale[:, None]


@published("Tune-A-Video", "Wu et al. 2023, section 4.2: the first and the previous frame")
def _(n):
    frame = np.arange(n) // 3
    q, k = frame[:, None], frame[None]
    return (k == 0) | (k == q) | (k == q - 1)


@published("Axial attention, rows", "Ho et al. 2019: pixels of one row")
def _(n):
    return same(np.arange(n) // 4)


@published("Axial attention, row or column", "Huang et al. 2019, CCNet")
def _(n):
    return same(np.arange(n) // 4) | same(np.arange(n) % 4)


@published("Swin, shifted windows", "Liu et al. 2021, figure 4: regions that the shift joins")
def _(n):
    return same((np.arange(n) + 2) % n // 4)


@published("Neighbourhood attention", "Hassani et al. 2023: at the edges the window stays whole")
def _(n):
    q, k = grid(n)
    centre = np.clip(q, 2, n - 3)
    return abs(k - centre) <= 2


@published("Locality self-attention", "Lee et al. 2021, section 3.2: the diagonal is masked")
def _(n):
    return ~np.eye(n, dtype=bool)


@published("LongT5, local", "Guo et al. 2022: a block and its neighbours")
def _(n):
    q, k = grid(n)
    return abs(q // 3 - k // 3) <= 1


@published("Emformer", "Shi et al. 2021: own chunk, some left context, a look ahead of two")
def _(n):
    q, k = grid(n)
    start = q // 4 * 4
    return (k >= start - 4) & (k < start + 4 + 2)


@published("Streaming encoder", "Zhang et al. 2020, Transformer Transducer: 6 back, 2 ahead")
def _(n):
    q, k = grid(n)
    return (k - q <= 2) & (q - k <= 6)


@published("Reformer", "Kitaev et al. 2020: causal within buckets that lie anywhere")
def _(n):
    return causal(n) & same(np.random.default_rng(n).integers(0, 3, size=n))


@published("H2O", "Zhang et al. 2023: a window and the keys that were heavy so far")
def _(n):
    q, k = grid(n)
    heavy = np.isin(np.arange(n), [1, 4, 9])
    return (k <= q) & ((q - k < 3) | heavy)


@published("Gist tokens", "Mu et al. 2023, figure 2: after the gist the prompt is hidden")
def _(n):
    q, k = grid(n)
    return (k <= q) & ~((q >= 6) & (k < 4))


@published("Attention knockout", "Geva et al. 2023: the last position does not see the subject")
def _(n):
    mask = causal(n)
    mask[-1, 2:4] = False
    return mask


@published("π0", "Black et al. 2024: images and prompt, state, actions, each sees what is before")
def _(n):
    block = np.searchsorted([n // 2, n // 2 + 1], np.arange(n), side="right")
    return block[None] <= block[:, None]


@published("Octo", "Octo Model Team 2024, figure 2: readouts see the past and are seen by nobody")
def _(n):
    step, readout = np.arange(n) // 4, np.arange(n) % 4 == 3
    before = step[None] <= step[:, None]
    return (before & ~readout) | np.eye(n, dtype=bool)


@published("ViT registers", "Darcet et al. 2024: everything sees everything")
def _(n):
    return np.ones((n, n), bool)


@published("Point clouds, graph edges", "Veličković et al. 2018: neighbours in a graph, itself too")
def _(n):
    edges = np.random.default_rng(n).random((n, n)) < 0.2
    return edges | edges.T | np.eye(n, dtype=bool)
