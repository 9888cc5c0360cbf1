"""Wrong calls: every one is refused by name, and by the whole family in the same words."""

import numpy as np
import pytest
from reference import normal

from attn import Causal, Dilated, KeyPadding, PrefixLM, SameDocument, SlidingWindow, arguments

FAMILY = (
    "attention_weights", "scaled_dot_product_attention", "blockwise_attention",
    "attention_backward", "fused_attention",
)  # fmt: skip


def family(backend):
    """Every function that takes a call of attention, in this library."""
    return [name for name in FAMILY if hasattr(backend.attn, name)]


def call(backend, name, changes):
    """A function of the family on operands that fit, apart from what `changes` says."""
    changes = dict(changes)
    grad_output = changes.pop("grad_output", None)
    fitting = {n: backend.array(normal(*shape)) for n, shape in zip(NAMES, SHAPES, strict=True)}
    operands = {**fitting, **changes}
    options = {name: operands.pop(name) for name in list(operands) if name not in NAMES}
    arrays = [operands[name] for name in NAMES]
    if name == "attention_weights":
        arrays = arrays[:2]
    if name == "attention_backward":
        upstream = normal(4, 3, 6, 5, 4) if grad_output is None else grad_output
        arrays = [backend.array(upstream), *arrays]
    return getattr(backend.attn, name)(*arrays, options.pop("mask", None), **options)


NAMES = ("query", "key", "value")
SHAPES = ((1, 3, 6, 5, 2), (2, 3, 3, 7, 2), (3, 3, 3, 7, 4))  # a seed, then the four axes

# What is wrong: the changed arguments (arrays in NumPy), the class, and words of the message.
z = np.zeros
WRONG = {
    "key and value lengths": (
        {"value": z((3, 3, 6, 4))},
        ValueError,
        ["value", "S = 7", "(3, 3, 6, 4)"],
    ),
    "head sizes": ({"key": z((3, 3, 7, 5))}, ValueError, ["key", "D = 2", "got 5"]),
    "heads": ({"query": z((3, 4, 5, 2))}, ValueError, ["query", "Hkv = 3", "H = 4"]),
    "no key heads": (
        {"key": z((3, 0, 7, 2)), "value": z((3, 0, 7, 4))},
        ValueError,
        ["Hkv = 0", "H = 6"],
    ),
    "batch": ({"query": z((2, 6, 5, 2))}, ValueError, ["key", "batch", "(2,)", "(3, 3, 7, 2)"]),
    "value heads": ({"value": z((3, 6, 7, 4))}, ValueError, ["value", "heads", "(3, 6, 7, 4)"]),
    "ranks": ({"query": z((6, 5, 2))}, ValueError, ["one rank", "(6, 5, 2)", "(3, 3, 7, 2)"]),
    "a vector": ({n: z(2) for n in NAMES}, ValueError, ["rank", "at least 2", "(2,)"]),
    "value of another rank": ({"value": z(7)}, ValueError, ["value", "S = 7", "(7,)"]),
    "integers": (
        {n: z(s, int) for n, s in zip(NAMES, ((5, 2), (7, 2), (7, 4)), strict=True)},
        TypeError,
        ["float", "query int64", "key int64"],
    ),
    "complex numbers": ({"key": z((3, 3, 7, 2), complex)}, TypeError, ["float", "key complex128"]),
    "booleans": ({"key": z((3, 3, 7, 2), bool)}, TypeError, ["float", "key bool"]),
    "mixed dtypes": (
        {"key": z((3, 3, 7, 2), np.float32)},
        TypeError,
        ["one float dtype", "query float64", "key float32"],
    ),
    "no query": ({"query": None}, TypeError, ["query", "NoneType"]),
    "no value": ({"value": None}, TypeError, ["value", "NoneType"]),
    "a list": ({"key": [[1.0, 2.0]]}, TypeError, ["key", "list"]),
    "float mask": ({"mask": z((5, 7))}, TypeError, ["mask", "boolean", "float64", "!= 0", "bias="]),
    "int mask": (
        {"mask": z((5, 7), int)},
        TypeError,
        ["mask", "boolean", "int64", "!= 0", "bias="],
    ),
    "byte mask": ({"mask": z((5, 7), np.uint8)}, TypeError, ["mask", "boolean", "uint8"]),
    "mask as a list": ({"mask": [[True] * 7] * 5}, TypeError, ["mask", "boolean", "[[True"]),
    "mask True": ({"mask": True}, TypeError, ["mask", "boolean", "True"]),
    "a function": (
        {"mask": lambda b, h, q, k: k <= q},
        TypeError,
        ["mask", "plain function", "Causal()", "attn.Mask"],
    ),
    "a class": ({"mask": Causal}, TypeError, ["mask", "class Causal"]),
    "a word": ({"mask": "causal"}, TypeError, ["mask", "'causal'"]),
    "mask of other lengths": (
        {"mask": z((7, 5), bool)},
        ValueError,
        ["mask", "(3, 6, 5, 7)", "(7, 5)"],
    ),
    "mask of the key heads": (
        {"mask": z((1, 3, 5, 7), bool)},
        ValueError,
        ["mask", "(3, 6, 5, 7)", "(1, 3, 5, 7)"],
    ),
    "mask of another batch": (
        {"mask": z((2, 1, 5, 7), bool)},
        ValueError,
        ["mask", "(2, 1, 5, 7)"],
    ),
    "mask of rank 3": (
        {"mask": z((3, 5, 7), bool)},
        ValueError,
        ["mask", "rank-3", "[:, None]", "(B, 1, L, S)"],
    ),
    "mask of rank 5": ({"mask": z((1, 3, 6, 5, 7), bool)}, ValueError, ["mask", "(1, 3, 6, 5, 7)"]),
    "boolean bias": ({"bias": z((5, 7), bool)}, TypeError, ["bias", "float", "bool", "mask="]),
    "int bias": ({"bias": z((5, 7), int)}, TypeError, ["bias", "float", "int64"]),
    "bias as a number": ({"bias": 0.5}, TypeError, ["bias", "float array", "0.5"]),
    "bias that does not fit": ({"bias": z((5, 6))}, ValueError, ["bias", "(3, 6, 5, 7)", "(5, 6)"]),
    "bias of rank 3": ({"bias": z((6, 5, 7))}, ValueError, ["bias", "rank-3", "[None]"]),
    "NaN in the bias": ({"bias": np.full((5, 7), np.nan)}, ValueError, ["bias", "NaN"]),
    "+inf in the bias": ({"bias": np.full((1, 7), np.inf)}, ValueError, ["bias", "+inf"]),
    "sink of the key heads": ({"sink": z(3)}, ValueError, ["sink", "(H,) = (6,)", "(3,)"]),
    "sink of rank 2": ({"sink": z((6, 1))}, ValueError, ["sink", "(6,)", "(6, 1)"]),
    "sink without an axis": ({"sink": z(())}, ValueError, ["sink", "(6,)", "()"]),
    "no axes": ({n: z(()) for n in NAMES}, ValueError, ["rank", "at least 2", "()"]),
    "scale of one entry": ({"scale": z(1)}, TypeError, ["scale", "number"]),
    "softcap as an array": ({"softcap": np.ones(())}, TypeError, ["softcap", "number"]),
    "offsets of ragged lists": ({"q_offset": [[0], [1, 2], 3]}, TypeError, ["q_offset", "[0]"]),
    "mask as a ragged list": ({"mask": [[True], [True, False]]}, TypeError, ["mask", "[[True]"]),
    "one sink": ({"sink": 0.5}, TypeError, ["sink", "(6,)", "float"]),
    "sink as a list": ({"sink": [0.0] * 6}, TypeError, ["sink", "list"]),
    "int sink": ({"sink": z(6, int)}, TypeError, ["sink", "int64"]),
    "NaN in the sink": ({"sink": np.full(6, np.nan)}, ValueError, ["sink", "NaN"]),
    "softcap 0": ({"softcap": 0}, ValueError, ["softcap", "> 0", "None", "got 0"]),
    "softcap below 0": ({"softcap": -1.5}, ValueError, ["softcap", "> 0", "-1.5"]),
    "softcap inf": ({"softcap": np.inf}, ValueError, ["softcap", "finite", "inf"]),
    "softcap NaN": ({"softcap": np.nan}, ValueError, ["softcap", "finite", "nan"]),
    "softcap True": ({"softcap": True}, TypeError, ["softcap", "number", "True"]),
    "scale inf": ({"scale": -np.inf}, ValueError, ["scale", "finite", "-inf"]),
    "scale NaN": ({"scale": np.nan}, ValueError, ["scale", "finite", "nan"]),
    "scale as a word": ({"scale": "1"}, TypeError, ["scale", "number", "'1'"]),
    "scale as an array": ({"scale": z(6)}, TypeError, ["scale", "number"]),
    "scale complex": ({"scale": 1j}, TypeError, ["scale", "number", "1j"]),
    "alignment left open": (
        {"mask": Causal()},
        ValueError,
        ["L = 5", "S = 7", "q_offset", "0 (upper-left)", "S - L = 2", "lower-right"],
    ),
    "alignment inside": (
        {"mask": KeyPadding(3) & ~SlidingWindow(1)},
        ValueError,
        ["L = 5", "S = 7"],
    ),
    "alignment of a prefix": ({"mask": PrefixLM(3)}, ValueError, ["L = 5", "S = 7"]),
    "alignment of a dilation": ({"mask": Dilated(2)}, ValueError, ["L = 5", "S = 7"]),
    "float offset": ({"q_offset": 2.0}, TypeError, ["q_offset", "int", "2.0"]),
    "float offsets": ({"q_offset": [1.0, 2.0, 3.0]}, TypeError, ["q_offset", "int"]),
    "boolean offset": ({"q_offset": True}, TypeError, ["q_offset", "int", "True"]),
    "offsets of another batch": (
        {"q_offset": [1, 2]},
        ValueError,
        ["q_offset", "(B,) = (3,)", "(2,)"],
    ),
    "offsets of rank 2": ({"q_offset": z((3, 1), int)}, ValueError, ["q_offset", "(3,)", "(3, 1)"]),
    "stop beyond the keys": (
        {"mask": KeyPadding(8)},
        ValueError,
        ["KeyPadding", "stop", "S = 7", "8"],
    ),
    "a stop below 0": (
        {"mask": KeyPadding([1, -1, 2])},
        ValueError,
        ["KeyPadding", "0 <= stop", "S = 7"],
    ),
    "start beyond the keys": (
        {"mask": KeyPadding(None, 8)},
        ValueError,
        ["KeyPadding", "start", "S = 7"],
    ),
    "stops of another batch": ({"mask": KeyPadding([1, 2])}, ValueError, ["stop", "(3,)", "(2,)"]),
    "ids that end early": (
        {"mask": SameDocument([0] * 6)},
        ValueError,
        ["SameDocument", "0 to 6", "0 to 5"],
    ),
}


def as_arrays(backend, changes):
    """The changed arguments with their arrays in the backend's own library."""
    own = {"q_offset"}
    return {
        name: backend.array(x) if isinstance(x, np.ndarray) and name not in own else x
        for name, x in changes.items()
    }


def refusal(backend, name, changes):
    with pytest.raises((TypeError, ValueError)) as caught:
        call(backend, name, as_arrays(backend, changes))
    return caught


def refused_by_the_family(backend, changes, error, words):
    plain = refusal(backend, "scaled_dot_product_attention", changes)
    assert plain.type is error
    for word in words:
        assert word in str(plain.value)
    for name in family(backend):
        if name == "attention_weights":  # its messages list one shape less
            if "value" not in changes or "key" in changes:
                caught = refusal(backend, name, changes)
                assert caught.type is error
                assert all(word in str(caught.value) for word in words)
        else:
            caught = refusal(backend, name, changes)
            assert (caught.type, str(caught.value)) == (error, str(plain.value)), name


@pytest.mark.parametrize("case", WRONG)
def test_16_wrong_calls_are_refused_by_name_and_by_all_in_the_same_words(backend, case):
    """Semantic 16: class, argument, what was expected in letters and numbers, what came.

    And the whole family says what the plain function says, to the letter.
    """
    refused_by_the_family(backend, *WRONG[case])


def results(backend, name, changes):
    """What a function of the family returns, as a list of arrays of NumPy."""
    returned = call(backend, name, as_arrays(backend, changes))
    returned = returned if isinstance(returned, tuple) else [returned]
    return [backend.to_numpy(x) for x in returned if x is not None]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_19_a_number_that_the_dtype_cannot_hold_saturates(backend, dtype):
    """Semantic 19: rounded to infinity or to 0 it would give NaN; a cap beyond all scores is none.

    On zeros every score is 0 whatever scales it; on ones it is finite while its scale is.
    """
    zeros = {name: z(shape[1:]).astype(dtype) for name, shape in zip(NAMES, SHAPES, strict=True)}
    ones = {name: array + array.dtype.type(1) for name, array in zeros.items()}
    for arrays in (zeros, ones):
        arrays["grad_output"] = np.ones((3, 6, 5, 4), dtype)

    def compare(name, arrays, option, numbers):
        for number in numbers:
            got = results(backend, name, arrays | {option: number})
            for x, want in zip(got, results(backend, name, arrays), strict=True):
                np.testing.assert_allclose(x, want, rtol=1e-6, err_msg=f"{name} {option} {number}")

    for name in family(backend):
        wide = (1e39, -1e39, 3.5e38, 1e-46, np.float64(1e300), np.longdouble(1e39))
        compare(name, zeros, "scale", wide)
        compare(name, ones, "softcap", (1e39, 1e300, np.longdouble(1e39)))
        for got in results(backend, name, ones | {"softcap": 1e-46}):
            assert np.isfinite(got).all(), f"{name}, a cap near 0"
    with pytest.raises(ValueError, match=r"scale: .*float"):
        results(backend, "attention_weights", zeros | {"scale": np.longdouble("1e400")})


HUGE = {
    "scale": ({"scale": 10**400}, ["scale", "float64 can hold", "1329 bits"]),
    "scale below": ({"scale": -(10**400)}, ["scale", "float64 can hold"]),
    "softcap": ({"softcap": 10**400}, ["softcap", "float64 can hold"]),
    "scale with 5000 digits": ({"scale": 10**5000}, ["scale", "float64 can hold"]),
    **{
        f"q_offset {where} as {type(offset).__name__} {getattr(offset, 'dtype', '')}": (
            {"mask": Causal(), "q_offset": offset}, ["q_offset", "expected"],
        )
        for where, offsets in {
            "beyond": [2**63, np.uint64(2**63), [2**63] * 3, np.array([0, 2**63, 0], np.uint64)],
            "at the end": [2**63 - 1, np.int64(2**63 - 1), np.array([0, 0, -(2**63)])],
            "far beyond": [10**5000, (10**30,) * 3],
        }.items()
        for offset in offsets
    },
}  # fmt: skip


@pytest.mark.parametrize("case", HUGE)
def test_19_numbers_beyond_every_dtype_are_refused_by_name(backend, case):
    """Semantic 19: no OverflowError from the inside, and no position that wraps around."""
    changes, words = HUGE[case]
    refused_by_the_family(backend, changes, ValueError, words)


def test_19_offsets_near_the_end_keep_their_meaning(backend):
    """2**62 is where positions end: the last offset that is taken hides nothing by accident."""
    for offset, seen in ((2**62, 1), (-(2**62), 0), (2**40, 1)):
        for rule in (Causal(), SlidingWindow(None), ~SlidingWindow(0, None)):
            allowed = backend.attn.dense_mask(rule, 2, 3, q_offset=offset)
            assert (backend.to_numpy(allowed) == seen).all(), (offset, rule)


@pytest.mark.parametrize("argument", [*NAMES, "mask", "bias", "sink", "q_offset"])
def test_16_libraries_are_never_mixed_and_arrays_are_plain(backend, argument):
    """Semantic 16: a tensor beside arrays, an array beside tensors, masked arrays and matrices."""
    torch = pytest.importorskip("torch")
    array = {
        **{name: normal(*shape) for name, shape in zip(NAMES, SHAPES, strict=True)},
        "mask": np.ones((5, 7), bool), "bias": np.zeros((5, 7)), "sink": np.zeros(6),
        "q_offset": np.zeros(3, int),
    }[argument]  # fmt: skip
    other = array if backend.name == "torch" else torch.tensor(array)
    for name in family(backend):
        if (name, argument) == ("attention_weights", "value"):
            continue
        if argument != "q_offset":
            with pytest.raises(TypeError, match=rf"{argument}: expected .*never mixed"):
                call(backend, name, {argument: other})
        for subclass in (np.ma.array(array), array.reshape(-1, array.shape[-1]).view(np.matrix)):
            with pytest.raises(TypeError, match=rf"{argument}: expected a plain array, got numpy"):
                call(backend, name, {argument: subclass})


def test_the_operands_that_the_cases_change_are_fine(backend):
    """Otherwise every case above could pass for another reason than its own."""
    rule = Causal() & KeyPadding([7, 0, 3]) & SameDocument([0] * 9)
    for name in family(backend):
        call(backend, name, {})
        call(backend, name, {"mask": rule, "q_offset": [2, 0, 1]})


def test_16_minus_infinity_is_a_legal_bias_and_sink(backend):
    arrays = as_arrays(backend, {"bias": np.full((5, 7), -np.inf), "sink": np.full(6, -np.inf)})
    assert (backend.to_numpy(call(backend, "scaled_dot_product_attention", arrays)) == 0).all()


def test_the_call_is_checked_before_anything_is_computed(backend):
    """A rule that fails when asked is never asked by a call that is wrong."""

    class Fails(type(Causal()).__mro__[1]):
        def __call__(self, b, h, q, k):
            raise AssertionError("asked")

    with pytest.raises(ValueError, match="softcap"):
        call(
            backend, "scaled_dot_product_attention", {"mask": Fails(), "q_offset": 0, "softcap": 0}
        )


# --- The checks themselves, on shapes alone -------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (((5, 2), (7, 2), (7, 4)), ((), 1, 1, 1, 5, 7, 2, 4)),
        (((6, 5, 2), (3, 7, 2), (3, 7, 4)), ((), 1, 6, 3, 5, 7, 2, 4)),
        (((3, 6, 5, 2), (3, 2, 7, 2)), ((3,), 3, 6, 2, 5, 7, 2, None)),
        (((3, 11, 6, 5, 2), (3, 11, 6, 7, 2), (3, 11, 6, 7, 4)), ((3, 11), 33, 6, 6, 5, 7, 2, 4)),
        (((0, 6, 5, 2), (0, 3, 7, 2)), ((0,), 0, 6, 3, 5, 7, 2, None)),
    ],
)
def test_sizes_unpack_shapes_into_the_letters(shapes, expected):
    assert tuple(arguments.sizes(*shapes)) == expected


def test_sizes_do_not_broadcast_a_batch():
    with pytest.raises(ValueError, match="batch axes of query"):
        arguments.sizes((3, 6, 5, 2), (1, 6, 7, 2))


@pytest.mark.parametrize("value", [True, 2.0, "2", None, np.float64(2), np.array(2)], ids=str)
def test_integer_takes_whole_numbers_only(value):
    with pytest.raises(TypeError, match="n: expected an int"):
        arguments.integer("n", value)


def test_19_integer_refuses_what_64_bits_cannot_hold():
    for value in (2**63, -(2**63) - 1, 10**5000, np.uint64(2**63)):
        with pytest.raises(ValueError, match=r"n: expected an int that 64 bits can hold, .* bits"):
            arguments.integer("n", value)
    for value in (2**63 - 1, -(2**63), np.int64(2**63 - 1)):
        arguments.integer("n", value)


def test_a_mask_is_checked_without_a_call():
    """What dense_mask, caches and translators ask, who have no bias and no scale."""
    size = arguments.Sizes((2,), 2, 3, 3, 5, 7, 0, 0)
    arguments.mask(size, None)
    arguments.mask(size, Causal(), q_offset=2)
    arguments.mask(size, np.ones((5, 7), bool), kind=np.ndarray)
    for changes, words in (
        ({"given": Causal()}, "L = 5"), ({"given": np.ones((5, 6), bool)}, "mask"),
        ({"given": None, "q_offset": [1, 2, 3]}, "q_offset"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            arguments.mask(size, **changes)
    with pytest.raises(TypeError, match="never mixed"):
        arguments.mask(size, np.ones((5, 7), bool), kind=str)


def test_integer_takes_python_and_numpy_integers():
    for value in (2, np.int8(2), np.uint64(2)):
        arguments.integer("n", value, low=2)
        with pytest.raises(ValueError, match="n: expected an int of at least 3, got 2"):
            arguments.integer("n", value, low=3)


@pytest.mark.parametrize("dtype", ["longdouble", ">f8"])
def test_dtypes_that_no_twin_knows_are_refused(dtype):
    import attn

    if np.dtype(dtype) == np.float64:
        pytest.skip("the same as float64 here")
    x = np.zeros((5, 2), dtype)
    with pytest.raises(TypeError, match=r"expected float arrays .*float64\), got query"):
        attn.scaled_dot_product_attention(x, x, x)
