"""`WorkStealingPool`: machine-code work stealing among threads that share one loop's elements in chunks.

In Python, a thread could begin and report a chunk only with the GIL: measured on 2 cores, that takes 80 us
more per loop, and up to 5 ms if another thread computes in Python.

Rules of this file:

  1. Member 0 is the calling thread. The others sleep on one semaphore each, and never spin: they would take
     cores from BLAS's threads.
  2. Each member first runs the chunks of its share, the same elements each time, which may still be in its
     core's cache; then it steals chunks that others have not begun.
  3. A late member finds no chunk left, and reads nothing of a loop that is being set up.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache
from typing import final

from flowrt.device.llvm.host_call import LoopCall
from flowrt.device.llvm.host_jit import compile_functions
from flowrt.loops.llvm_text import with_fields

MAX_MEMBERS = 256

PIECES_EACH = 4
"""Chunks per share, so that a late member, or one on a busy core, runs fewer."""

TEXT = with_fields("""
; The loop and its table, begin, end, elements a piece, members, members at work, the first piece's number;
; a share a member.
%Team = type { ptr, ptr, i64, i64, i64, i64, i64, i64, [8 x i64], [0 x %Share] }
; The next piece, the end of pieces, whether to end, a semaphore (sem_t, 32 bytes), the first piece; in cache
; lines of its own.
%Share = type { i64, i64, i64, [4 x i64], i64, [8 x i64] }

declare i32 @sem_wait(ptr)
declare i32 @sem_post(ptr)
declare i32 @sched_yield()

; A piece belongs to who adds to its share's `next`. Between loops every `next` is 2^62, beyond all pieces: so
; who gets a piece below the end got it of a loop of which all else was written before. Pieces of all loops
; are numbered on: a number that was taken of one loop, by who was held up since, is below the first of the
; next.
;
; Not optimised: that took three times as long to compile, and the time of a loop is in its pieces.

define internal void @take_pieces(ptr %team, i64 %member) nounwind noinline optnone {
entry:
  %n_place = getelementptr %Team, ptr %team, i64 0, i32 5
  %n = load atomic i64, ptr %n_place seq_cst, align 8
  br label %shares
shares:
  %i = phi i64 [ 0, %entry ], [ %i_next, %exhausted ]
  %is_left = icmp ult i64 %i, %n
  br i1 %is_left, label %share, label %exit
share:
  %turned = add i64 %member, %i
  %owner = urem i64 %turned, %n
  %next = getelementptr %Team, ptr %team, i64 0, i32 9, i64 %owner, i32 0
  %limit_place = getelementptr %Team, ptr %team, i64 0, i32 9, i64 %owner, i32 1
  %first_place = getelementptr %Team, ptr %team, i64 0, i32 9, i64 %owner, i32 4
  br label %take
take:
  %piece = atomicrmw add ptr %next, i64 1 seq_cst
  %limit = load atomic i64, ptr %limit_place seq_cst, align 8
  %first = load atomic i64, ptr %first_place seq_cst, align 8
  %is_below = icmp slt i64 %piece, %limit
  %is_above = icmp sge i64 %piece, %first
  %is_piece = and i1 %is_below, %is_above
  br i1 %is_piece, label %do, label %exhausted
do:
  %loop = load ptr, ptr %team
  %table = field ptr, %Team, ptr %team, i64 0, i32 1
  %begin = field i64, %Team, ptr %team, i64 0, i32 2
  %end = field i64, %Team, ptr %team, i64 0, i32 3
  %size = field i64, %Team, ptr %team, i64 0, i32 4
  %base = field i64, %Team, ptr %team, i64 0, i32 7
  %number = sub i64 %piece, %base
  %offset = mul i64 %number, %size
  %from = add i64 %begin, %offset
  %full = add i64 %from, %size
  %is_last = icmp sgt i64 %full, %end
  %to = select i1 %is_last, i64 %end, i64 %full
  call void %loop(ptr %table, i64 %from, i64 %to)
  br label %take
exhausted:
  %i_next = add i64 %i, 1
  br label %shares
exit:
  ret void
}

; A member's life but for member 0's.
define void @work(ptr %team, i64 %member, i64 %unused) nounwind noinline optnone {
  %at_work = getelementptr %Team, ptr %team, i64 0, i32 6
  %end = getelementptr %Team, ptr %team, i64 0, i32 9, i64 %member, i32 2
  %semaphore = getelementptr %Team, ptr %team, i64 0, i32 9, i64 %member, i32 3
  br label %sleep
sleep:
  %woken = call i32 @sem_wait(ptr %semaphore)
  %ended = load atomic i64, ptr %end seq_cst, align 8
  %is_ended = icmp ne i64 %ended, 0
  br i1 %is_ended, label %exit, label %help
help:
  %came = atomicrmw add ptr %at_work, i64 1 seq_cst
  call void @take_pieces(ptr %team, i64 %member)
  %left = atomicrmw sub ptr %at_work, i64 1 seq_cst
  br label %sleep
exit:
  ret void
}

; Member 0's loop, over [begin, end). The loop, its table, elements a piece and members are set.
define void @share(ptr %team, i64 %begin, i64 %end) nounwind noinline optnone {
entry:
  %begin_place = getelementptr %Team, ptr %team, i64 0, i32 2
  store i64 %begin, ptr %begin_place
  %end_place = getelementptr %Team, ptr %team, i64 0, i32 3
  store i64 %end, ptr %end_place
  %size = field i64, %Team, ptr %team, i64 0, i32 4
  %n = field i64, %Team, ptr %team, i64 0, i32 5
  %at_work = getelementptr %Team, ptr %team, i64 0, i32 6
  %count = sub i64 %end, %begin
  %count_up = add i64 %count, %size
  %count_up_less = sub i64 %count_up, 1
  %n_pieces = udiv i64 %count_up_less, %size
  %n_pieces_up = add i64 %n_pieces, %n
  %n_pieces_up_less = sub i64 %n_pieces_up, 1
  %each = udiv i64 %n_pieces_up_less, %n
  %base = field i64, %Team, ptr %team, i64 0, i32 7
  %beyond = add i64 %base, %n_pieces
  br label %open
open:
  %i = phi i64 [ 0, %entry ], [ %i_next, %open ]
  %i_next = add i64 %i, 1
  %before = mul i64 %i, %each
  %first = add i64 %base, %before
  %after = add i64 %first, %each
  %is_short = icmp sgt i64 %after, %beyond
  %limit = select i1 %is_short, i64 %beyond, i64 %after
  %first_place = getelementptr %Team, ptr %team, i64 0, i32 9, i64 %i, i32 4
  store atomic i64 %first, ptr %first_place seq_cst, align 8
  %limit_place = getelementptr %Team, ptr %team, i64 0, i32 9, i64 %i, i32 1
  store atomic i64 %limit, ptr %limit_place seq_cst, align 8
  %next = getelementptr %Team, ptr %team, i64 0, i32 9, i64 %i, i32 0
  store atomic i64 %first, ptr %next seq_cst, align 8
  %is_open = icmp eq i64 %i_next, %n
  br i1 %is_open, label %wake, label %open
wake:
  %j = phi i64 [ 1, %open ], [ %j_next, %wake ]
  %j_next = add i64 %j, 1
  %semaphore = getelementptr %Team, ptr %team, i64 0, i32 9, i64 %j, i32 3
  %posted = call i32 @sem_post(ptr %semaphore)
  %is_awake = icmp eq i64 %j_next, %n
  br i1 %is_awake, label %help, label %wake
help:
  call void @take_pieces(ptr %team, i64 0)
  br label %wait
wait:
  %working = load atomic i64, ptr %at_work seq_cst, align 8
  %is_over = icmp eq i64 %working, 0
  br i1 %is_over, label %close, label %yield
yield:
  %yielded = call i32 @sched_yield()
  br label %wait
close:
  %k = phi i64 [ 0, %wait ], [ %k_next, %close ]
  %k_next = add i64 %k, 1
  %closed = getelementptr %Team, ptr %team, i64 0, i32 9, i64 %k, i32 0
  store atomic i64 4611686018427387904, ptr %closed seq_cst, align 8
  %is_closed = icmp eq i64 %k_next, %n
  br i1 %is_closed, label %advance, label %close
advance:
  %following = add i64 %beyond, 1048576 ; more than looked in vain
  store i64 %following, ptr %base_place
  ret void
}
""")

WORD, TEAM_WORDS, SHARE_WORDS = 8, 16, 16
LOOP, TABLE, PIECE, MEMBERS = 0, 1, 4, 5
"""Word indices of a WorkStealingPool."""

NEXT, ENDED, SEMAPHORE = 0, 2, 3
"""Word indices of a Share."""

NOTHING = 1 << 62

_libc = ctypes.CDLL(None)


@cache
def _functions() -> dict[str, LoopCall]:
    """The functions of `TEXT`, which are called like loops."""
    return {name: function.call for name, function in compile_functions(TEXT, ("share", "work")).items()}


def prepare() -> None:
    """Compile the pool's code, 10 ms, so that the first loop that threads share does not wait for it."""
    _functions()


@final
class WorkStealingPool:
    """The pool of `TEXT` with `MAX_MEMBERS` shares. The caller sees to it that a member is one thread, and
    that there is one loop at a time.
    """

    def __init__(self) -> None:
        self._words = (ctypes.c_int64 * (TEAM_WORDS + SHARE_WORDS * MAX_MEMBERS))()
        self._address = ctypes.addressof(self._words)
        for member in range(MAX_MEMBERS):
            self._words[_word(member, NEXT)] = NOTHING

    def admit(self, member: int) -> None:
        """Reset the member's state; call it before `work`."""
        self._words[_word(member, ENDED)] = 0
        _libc.sem_init(self._semaphore(member), 0, 0)

    def work(self, member: int) -> None:
        """Help with one loop after another, without the GIL, until `dismiss`."""
        _functions()["work"](self._address, member, 0)

    def dismiss(self, member: int) -> None:
        """End the member's `work`."""
        self._words[_word(member, ENDED)] = 1
        _libc.sem_post(self._semaphore(member))

    def share(
        self, call: LoopCall, table_address: int, begin: int, end: int, grain: int, n_members: int
    ) -> None:
        """Run the loop with members 0 (this thread) to ``n_members - 1``; there must be at least two."""
        words = self._words
        words[LOOP], words[TABLE], words[MEMBERS] = call.__self__, table_address, n_members
        words[PIECE] = grain * math.ceil((end - begin) / (n_members * PIECES_EACH * grain))
        _functions()["share"](self._address, begin, end)

    def _semaphore(self, member: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._address + WORD * _word(member, SEMAPHORE))


def _word(member: int, word: int) -> int:
    return TEAM_WORDS + SHARE_WORDS * member + word
