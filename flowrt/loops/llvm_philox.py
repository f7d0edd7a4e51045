"""LLVM IR that draws uniform numbers, as text. Pure; nothing here needs LLVM.

    void flowrt_loop(ptr table, i64 begin, i64 end)

Philox4x64-10 (Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, 2011) makes 256 bits of a key and
a counter: a block, of eight float32 or four float64. The bits are those of `numpy.random.Philox`, and the
numbers those of its generator's ``random``. The table has the address of the numbers, the two words of the
key, and the first, third and fourth of the counter; the second is 0. ``begin`` and ``end`` count blocks.
"""

from __future__ import annotations

from functools import cache
from string import Template

from flowrt.loops.llvm_text import FUNCTION, with_fields

ROUNDS = 10
MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
KEY_STEPS = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B

PER_BLOCK = {"float32": 8, "float64": 4}
"""Numbers of a block."""

_TEXT = Template(f"""
define void @{FUNCTION}(ptr %table, i64 %begin, i64 %end) nounwind {{
entry:
  %numbers = load ptr, ptr %table
  %key0_0 = field i64, i64, ptr %table, i64 1
  %key1_0 = field i64, i64, ptr %table, i64 2
  %counter0 = field i64, i64, ptr %table, i64 3
  %counter2 = field i64, i64, ptr %table, i64 4
  %counter3 = field i64, i64, ptr %table, i64 5
$keys
  br label %test
test:
  %i = phi i64 [ %begin, %entry ], [ %next, %draw ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %draw, label %exit
draw:
  %x0_0 = add i64 %counter0, %i
  %x1_0 = add i64 0, 0
  %x2_0 = add i64 %counter2, 0
  %x3_0 = add i64 %counter3, 0
$rounds
  %words0 = insertelement <4 x i64> poison, i64 %x0_{ROUNDS}, i64 0
  %words1 = insertelement <4 x i64> %words0, i64 %x1_{ROUNDS}, i64 1
  %words2 = insertelement <4 x i64> %words1, i64 %x2_{ROUNDS}, i64 2
  %words = insertelement <4 x i64> %words2, i64 %x3_{ROUNDS}, i64 3
$numbers
  %next = add i64 %i, 1
  br label %test
exit:
  ret void
}}
""")

_KEYS = """  %key{n}_{r} = add i64 %key{n}_0, {step}"""

_ROUND = """  %a{r} = zext i64 %x0_{r} to i128
  %b{r} = zext i64 %x2_{r} to i128
  %p{r} = mul i128 %a{r}, {first}
  %q{r} = mul i128 %b{r}, {second}
  %ph{r} = lshr i128 %p{r}, 64
  %qh{r} = lshr i128 %q{r}, 64
  %p_high{r} = trunc i128 %ph{r} to i64
  %q_high{r} = trunc i128 %qh{r} to i64
  %s{r} = xor i64 %q_high{r}, %x1_{r}
  %t{r} = xor i64 %p_high{r}, %x3_{r}
  %x0_{next} = xor i64 %s{r}, %key0_{r}
  %x1_{next} = trunc i128 %q{r} to i64
  %x2_{next} = xor i64 %t{r}, %key1_{r}
  %x3_{next} = trunc i128 %p{r} to i64"""

# The upper 24 or 53 bits of half a word or of a word, times 2**-24 or 2**-53.
_NUMBERS = Template("""  %halves = bitcast <4 x i64> %words to <$n x $integer>
  %whole = lshr <$n x $integer> %halves, <$shifts>
  %float = sitofp <$n x $integer> %whole to <$n x $float>
  %drawn = fmul <$n x $float> %float, <$scales>
  %place = getelementptr <$n x $float>, ptr %numbers, i64 %i
  store <$n x $float> %drawn, ptr %place, align $align""")

_FORMATS = {
    "float32": ("i32", "float", 8, "0x3E70000000000000", 4),
    "float64": ("i64", "double", 11, "0x3CA0000000000000", 8),
}
"""Types of the numbers' bits and of the numbers, the bits that are dropped, the factor, and the alignment."""


def _numbers(dtype: str) -> str:
    integer, float_, shift, scale, align = _FORMATS[dtype]
    n = PER_BLOCK[dtype]
    shifts, scales = ", ".join([f"{integer} {shift}"] * n), ", ".join([f"{float_} {scale}"] * n)
    parts = {"n": n, "integer": integer, "float": float_, "shifts": shifts, "scales": scales, "align": align}
    return _NUMBERS.substitute(parts)


@cache
def uniform(dtype: str) -> str:
    """The text of the module for numbers of ``dtype``, a key of `PER_BLOCK`: made once, in 0.14 ms, as each
    draw asks for it.
    """
    first, second = MULTIPLIERS
    keys = [
        _KEYS.format(n=n, r=r, step=r * step % 2**64)
        for r in range(1, ROUNDS)
        for n, step in enumerate(KEY_STEPS)
    ]
    rounds = [_ROUND.format(r=r, next=r + 1, first=first, second=second) for r in range(ROUNDS)]
    return with_fields(
        _TEXT.substitute(keys="\n".join(keys), rounds="\n".join(rounds), numbers=_numbers(dtype))
    )
