"""FlashAttention: exact attention in tiles, without the T × S matrix; in PyTorch and in Triton.

Letters: ``T`` queries, ``S`` keys, ``d`` width of a head, ``N`` heads of all items of a batch or
splits of a cache. ``...`` stands for any number of batch and head axes. Scores are q·k/√d. With
``causal=True`` the last query sees the last key, the query before it all keys but the last, and so
on, as in ``causal_mask`` of the decoder's chapter; where T is larger than S, the first T − S
queries see no key: their output is zero and their logsumexp −∞.

The papers' ℓ, the sum of exponentials, is called ``total``. Sums are kept in float32 where the
inputs are half precision or float32, in float64 for float64. Logarithms are natural.

Triton's kernels run compiled where there is a GPU, and in Triton's interpreter elsewhere. Without
Triton (there is none for Windows and macOS) everything but the kernels works.
"""

import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

# Triton reads this when it is imported.
os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")
try:
    import triton
    import triton.language as tl
except ImportError:
    from autograder.guest.no_triton import tl, triton

__all__ = [
    "FlashAttention",
    "attend_in_blocks",
    "attention_traffic",
    "borrowed_forward",
    "combine_splits",
    "flash_backward",
    "flash_backward_dkv_kernel",
    "flash_backward_dq_kernel",
    "flash_forward",
    "flash_forward_kernel",
    "flash_forward_test",
    "logsumexp_kernel",
    "online_softmax",
    "triton_flash_backward",
    "triton_flash_forward",
    "triton_logsumexp",
]


def attention_traffic(
    T: int, S: int, d: int, *, fused: bool = False, item_bytes: int = 2
) -> tuple[int, int]:
    """Work and traffic of one head's forward pass, without a mask.

    Counted as work: the two matrix products, each multiplication and each addition as one; not the
    exponentials. Counted as traffic: every number that is read from main memory or written to it.
    Unfused, each of three steps reads its inputs and writes its result: scores, softmax, weighted
    sum. Fused, q, k and v are read once and the output is written, and nothing else.

    Args:
        T: number of queries.
        S: number of keys and values.
        d: width of queries, keys and values.
        fused: whether scores and weights stay in the fast memory.
        item_bytes: bytes of one number; 2 in half precision.

    Returns:
        FLOPs, and bytes to and from main memory.

    Source: Dao et al. 2022, section 3.2, theorem 2 (there up to constants).
    """
    ### BEGIN SOLUTION
    flops = 2 * T * S * d + 2 * T * S * d  # q kᵀ, then weights v
    inputs_and_output = (T + 2 * S) * d + T * d
    # The scores are written and read, then the weights are written and read.
    matrix = 0 if fused else 4 * T * S
    return flops, (inputs_and_output + matrix) * item_bytes
    ### END SOLUTION


def online_softmax(stream: Iterable[float]) -> tuple[float, float]:
    """Maximum of a stream of scores, and the sum of exp(score − maximum), in one pass.

    Args:
        stream: scores, each of which can be seen once only; they are not kept. A score may be −∞
            (a masked one).

    Returns:
        Running maximum m and running sum l after the last score: softmax of a score x is
        exp(x − m) / l. A stream that is empty, or −∞ throughout, gives (−∞, 0).

    Source: Milakov and Gimelshein 2018, algorithm 3.
    """
    ### BEGIN SOLUTION
    m, total = -math.inf, 0.0
    for score in stream:
        if score == -math.inf:
            continue  # adds nothing; as long as m is −∞ too, −∞ − (−∞) would be NaN
        m_new = max(m, score)
        total = total * math.exp(m - m_new) + math.exp(score - m_new)
        m = m_new
    return m, total
    ### END SOLUTION


def attend_in_blocks(q: Tensor, k: Tensor, v: Tensor, *, block: int) -> tuple[Tensor, Tensor]:
    """Attention of one query, which meets its keys block by block.

    Args:
        q: the query, shape (d,), float32 or float64.
        k: keys, shape (S, d), same dtype.
        v: values, shape (S, d), same dtype.
        block: how many keys are looked at together; the last block may be shorter.

    Returns:
        Output, shape (d,), and the logsumexp of the scores, shape (), both of the inputs' dtype.
        Nothing of length S is made on the way.

    Source: Milakov and Gimelshein 2018, section 3; Rabe and Staats 2021, section 2.
    """
    ### BEGIN SOLUTION
    scale = 1 / math.sqrt(q.shape[-1])
    m = q.new_tensor(-math.inf)
    total = q.new_tensor(0.0)
    accumulator = torch.zeros_like(v[0])  # (d,)
    for start in range(0, k.shape[0], block):
        scores = k[start : start + block] @ q * scale  # (block,)
        m_new = torch.maximum(m, scores.max())
        p = torch.exp(scores - m_new)  # (block,)
        factor = torch.exp(m - m_new)  # what was summed so far belongs to the old maximum
        total = total * factor + p.sum()
        accumulator = accumulator * factor + p @ v[start : start + block]
        m = m_new
    return accumulator / total, m + torch.log(total)
    ### END SOLUTION


def flash_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[Tensor, Tensor]:
    """Attention in tiles of queries and keys.

    Args:
        q: queries, shape (..., T, d), floating point.
        k: keys, shape (..., S, d), same dtype.
        v: values, shape (..., S, d), same dtype.
        causal: whether the last query sees all keys, the one before it all but the last, …
        block_q: queries of a tile; the last tile may have fewer.
        block_k: keys of a tile; the last tile may have fewer.

    Returns:
        Output, shape (..., T, d), of the inputs' dtype, and the logsumexp of each row of scores,
        shape (..., T), float32 (float64 for float64 inputs). A query that sees no key gets zeros
        and −∞. Nothing of T × S numbers is made; tiles in which no query sees a key are skipped.

    Source: Dao 2023, algorithm 1.
    """
    ### BEGIN SOLUTION
    T, S, d = q.shape[-2], k.shape[-2], q.shape[-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    output = torch.empty_like(q)  # (..., T, d)
    logsumexp = torch.empty(q.shape[:-1], dtype=wide, device=q.device)  # (..., T)
    for t in range(0, T, block_q):
        rows = q[..., t : t + block_q, :].to(wide) / math.sqrt(d)  # (..., bq, d)
        bq = rows.shape[-2]
        position = torch.arange(t, t + bq, device=q.device) + (S - T)  # of the queries, among keys
        m = rows.new_full(rows.shape[:-1], -math.inf)  # (..., bq)
        total = torch.zeros_like(m)
        accumulator = torch.zeros_like(rows)  # (..., bq, d)
        # keys behind the last query's position are seen by no query of this tile
        end = min(S, t + bq + S - T) if causal else S
        for s in range(0, end, block_k):
            keys = k[..., s : s + block_k, :].to(wide)  # (..., bk, d)
            values = v[..., s : s + block_k, :].to(wide)
            scores = rows @ keys.transpose(-2, -1)  # (..., bq, bk)
            if causal:
                key = torch.arange(s, s + keys.shape[-2], device=q.device)
                scores = scores.masked_fill(key > position.unsqueeze(-1), -math.inf)
            m_new = torch.maximum(m, scores.amax(dim=-1))
            # A row that has seen no key yet: −∞ − (−∞) would be NaN, −∞ − 0 is what is meant.
            subtracted = m_new.masked_fill(m_new == -math.inf, 0.0)
            p = torch.exp(scores - subtracted.unsqueeze(-1))
            factor = torch.exp(m - subtracted)
            total = total * factor + p.sum(dim=-1)
            accumulator = accumulator * factor.unsqueeze(-1) + p @ values
            m = m_new
        divisor = total.masked_fill(total == 0, 1.0).unsqueeze(-1)
        output[..., t : t + block_q, :] = (accumulator / divisor).to(q.dtype)
        logsumexp[..., t : t + block_q] = m + torch.log(total)
    return output, logsumexp
    ### END SOLUTION


def borrowed_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[Tensor, Tensor]:
    """Attention in tiles as somebody else wrote it: all queries' maxima and sums at once.

    Args and returns: those of ``flash_forward``, for inputs of float32 or float64 with T not
    larger than S. The loops are the other way round: keys outside, queries inside.

    Source: Dao et al. 2022, algorithm 1 (the loops in this order).
    """
    ### BEGIN SOLUTION
    T, S, d = q.shape[-2], k.shape[-2], q.shape[-1]
    m = q.new_full(q.shape[:-1], -math.inf)  # (..., T)
    total = torch.zeros_like(m)
    output = torch.zeros_like(q)  # not divided by l yet
    for s in range(0, S, block_k):
        keys, values = k[..., s : s + block_k, :], v[..., s : s + block_k, :]
        key = torch.arange(s, s + keys.shape[-2], device=q.device)
        for t in range(0, T, block_q):
            rows = slice(t, min(t + block_q, T))
            if causal and s > rows.stop - 1 + S - T:
                continue
            scores = q[..., rows, :] @ keys.transpose(-2, -1) / math.sqrt(d)  # (..., bq, bk)
            if causal:
                query = torch.arange(rows.start, rows.stop, device=q.device) + S - T
                scores = scores.masked_fill(key > query.unsqueeze(-1), -math.inf)
            m_new = torch.maximum(m[..., rows], scores.amax(dim=-1))
            p = torch.exp(scores - m_new.unsqueeze(-1))
            factor = torch.exp(m[..., rows] - m_new)
            total[..., rows] = total[..., rows] * factor + p.sum(dim=-1)
            output[..., rows, :] = output[..., rows, :] * factor.unsqueeze(-1) + p @ values
            m[..., rows] = m_new
    return output / total.unsqueeze(-1), m + torch.log(total)
    ### END SOLUTION


def flash_forward_test(flash_forward: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """Test somebody's ``flash_forward``: would it be wrong for some tiles, masks or scores?

    Args:
        flash_forward: called as ``flash_forward(q, k, v, causal=..., block_q=..., block_k=...)``,
            returns output (..., T, d) and logsumexp (..., T) as ``flash_forward`` of this chapter.
            It may be called a hundred times or so.

    Raises:
        AssertionError: the implementation is wrong.
    """
    ### BEGIN SOLUTION
    noise = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=noise)

    # tiles that fit, fewer queries than keys in ragged tiles, more queries than keys
    for T, S in ((8, 8), (7, 11), (9, 5)):
        for causal in (False, True):
            for block_q, block_k in ((4, 4), (2, 5)):
                for scale, shift in ((1.0, 0.0), (30.0, 0.0), (1.0, -60.0)):
                    q, k, v = normal(2, T, 4) * scale, normal(2, S, 4), normal(2, S, 4)
                    q[..., 0], k[..., 0] = q[..., 0] + abs(shift), k[..., 0] + shift
                    scores = q @ k.transpose(-2, -1) / math.sqrt(4)
                    if causal:
                        hidden = torch.arange(S) > torch.arange(T).unsqueeze(-1) + S - T
                        scores = scores.masked_fill(hidden, -math.inf)
                    expected = torch.softmax(scores, dim=-1).nan_to_num(0.0) @ v
                    output, logsumexp = flash_forward(
                        q, k, v, causal=causal, block_q=block_q, block_k=block_k
                    )
                    assert output.shape == expected.shape
                    # Scores reach some thousands here, and their last places some 1e-4.
                    assert torch.allclose(output, expected, atol=5e-3), "the output"
                    assert torch.allclose(logsumexp, scores.logsumexp(-1), atol=5e-3), "logsumexp"
    ### END SOLUTION


def flash_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    grad_output: Tensor,
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of attention in tiles; the weights are computed again from the logsumexp.

    Args:
        q: queries, shape (..., T, d), floating point.
        k: keys, shape (..., S, d), same dtype.
        v: values, shape (..., S, d), same dtype.
        output: what ``flash_forward`` gave, shape (..., T, d).
        logsumexp: what ``flash_forward`` gave, shape (..., T).
        grad_output: gradient of a loss by the output, shape (..., T, d).
        causal: as in ``flash_forward``.
        block_q: queries of a tile; the last tile may have fewer.
        block_k: keys of a tile; the last tile may have fewer.

    Returns:
        Gradients of the loss by q, k and v: their shapes and dtype. A query that sees no key gets
        zeros. Nothing of T × S numbers is made; tiles in which no query sees a key are skipped.

    Source: Dao 2023, algorithm 2.
    """
    ### BEGIN SOLUTION
    T, S, d = q.shape[-2], k.shape[-2], q.shape[-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    scale = 1 / math.sqrt(d)
    delta = (grad_output.to(wide) * output.to(wide)).sum(dim=-1)  # (..., T)
    # exp(score − ∞) = 0: the weights of a query that sees no key
    logsumexp = logsumexp.masked_fill(logsumexp == -math.inf, math.inf)
    dq = torch.zeros(q.shape, dtype=wide, device=q.device)
    dk = torch.zeros(k.shape, dtype=wide, device=q.device)
    dv = torch.zeros(v.shape, dtype=wide, device=q.device)
    for s in range(0, S, block_k):
        columns = slice(s, min(s + block_k, S))
        keys, values = k[..., columns, :].to(wide), v[..., columns, :].to(wide)  # (..., bk, d)
        # the first query that sees key s stands at position s among the keys
        first = max(0, s - (S - T)) // block_q * block_q if causal else 0
        for t in range(first, T, block_q):
            rows = slice(t, min(t + block_q, T))
            queries, g = q[..., rows, :].to(wide), grad_output[..., rows, :].to(wide)
            scores = queries @ keys.transpose(-2, -1) * scale  # (..., bq, bk)
            if causal:
                key = torch.arange(columns.start, columns.stop, device=q.device)
                query = torch.arange(rows.start, rows.stop, device=q.device) + (S - T)
                scores = scores.masked_fill(key > query.unsqueeze(-1), -math.inf)
            p = torch.exp(scores - logsumexp[..., rows].unsqueeze(-1))  # the weights once more
            dv[..., columns, :] += p.transpose(-2, -1) @ g
            dp = g @ values.transpose(-2, -1)  # (..., bq, bk)
            ds = p * (dp - delta[..., rows].unsqueeze(-1)) * scale
            dq[..., rows, :] += ds @ keys
            dk[..., columns, :] += ds.transpose(-2, -1) @ queries
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
    ### END SOLUTION


class FlashAttention(torch.autograd.Function):
    """Attention in tiles with its own backward pass: ``FlashAttention.apply(q, k, v, causal)``.

    ``apply`` takes q (..., T, d), k and v (..., S, d) and a bool, and returns the output
    (..., T, d). Between the passes it keeps its inputs, the output and the logsumexp, nothing of
    T × S numbers.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        """The output, shape (..., T, d); what backward needs is kept in ``ctx``."""
        ### BEGIN SOLUTION
        output, logsumexp = flash_forward(q, k, v, causal=causal)
        ctx.save_for_backward(q, k, v, output, logsumexp)
        ctx.causal = causal
        return output
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """One gradient for each argument of forward: q, k, v, and None for causal."""
        ### BEGIN SOLUTION
        q, k, v, output, logsumexp = ctx.saved_tensors
        dq, dk, dv = flash_backward(q, k, v, output, logsumexp, grad_output, causal=ctx.causal)
        return dq, dk, dv, None
        ### END SOLUTION


@triton.jit
def logsumexp_kernel(x_ptr, logsumexp_ptr, S, BLOCK: tl.constexpr):
    """Logsumexp of each row of a matrix; program ``i`` streams over row ``i``.

    Args:
        x_ptr: finite scores, (N, S), float32, row after row; S may be any number from 1.
        logsumexp_ptr: result, (N,), float32.
        S: length of a row.
        BLOCK: how many scores are loaded together, a power of two.

    The grid is (N,).
    """
    ### BEGIN SOLUTION
    row = tl.program_id(0)
    m = float("-inf")
    total = 0.0
    for start in range(0, S, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        # exp(−∞) = 0: what stands behind the row's end adds nothing
        x = tl.load(x_ptr + row * S + columns, mask=columns < S, other=float("-inf"))
        m_new = tl.maximum(m, tl.max(x, axis=0))
        total = total * tl.exp(m - m_new) + tl.sum(tl.exp(x - m_new), axis=0)
        m = m_new
    tl.store(logsumexp_ptr + row, m + tl.log(total))
    ### END SOLUTION


@triton.jit
def flash_forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    output_ptr,
    logsumexp_ptr,
    T,
    S,
    scale,
    d: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Attention of one tile of queries of one head: program (i, n) has tile i of head n.

    Args:
        q_ptr: queries, (N, T, d), row after row, float16, bfloat16 or float32.
        k_ptr: keys, (N, S, d), same dtype.
        v_ptr: values, (N, S, d), same dtype.
        output_ptr: result, (N, T, d), same dtype.
        logsumexp_ptr: result, (N, T), float32.
        T: number of queries.
        S: number of keys.
        scale: factor of the scores, 1/√d.
        d: width of a head, a power of two from 16.
        CAUSAL: whether the last query sees all keys, the one before it all but the last, …
        BLOCK_Q: queries of a tile, a power of two from 16; T need not be a multiple.
        BLOCK_K: keys of a tile, a power of two from 16; S need not be a multiple.

    The grid is (⌈T / BLOCK_Q⌉, N). Sums are kept in float32. A query that sees no key gets zeros
    and −∞. Tiles in which no query sees a key are not loaded.
    """
    ### BEGIN SOLUTION
    tile = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)  # head · T · d may be larger than an int32 holds
    queries = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    width = tl.arange(0, d)
    q_at = (head * T + queries[:, None]) * d + width[None, :]  # (BLOCK_Q, d)
    q = tl.load(q_ptr + q_at, mask=queries[:, None] < T, other=0.0)
    # exp2 is what the hardware has: scores in units of ln 2
    scale *= 1.4426950408889634
    m = tl.full((BLOCK_Q,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_Q,), tl.float32)
    accumulator = tl.zeros((BLOCK_Q, d), tl.float32)
    # Keys before `whole` are seen by every query of the tile, keys from `end` on by none: first
    # the tiles that need no mask, then those that do.
    whole, end = S, S
    if CAUSAL:
        whole = tl.maximum(0, tl.minimum(S, tile * BLOCK_Q + S - T + 1))
        end = tl.maximum(0, tl.minimum(S, tile * BLOCK_Q + BLOCK_Q + S - T))
    whole = whole // BLOCK_K * BLOCK_K
    for masked in tl.static_range(2):
        first = whole if masked else 0
        last = end if masked else whole
        for start in range(first, last, BLOCK_K):
            keys = start + tl.arange(0, BLOCK_K)
            k_at = (head * S + keys[:, None]) * d + width[None, :]  # (BLOCK_K, d)
            if masked:
                k = tl.load(k_ptr + k_at, mask=keys[:, None] < S, other=0.0)
                v = tl.load(v_ptr + k_at, mask=keys[:, None] < S, other=0.0)
            else:
                k = tl.load(k_ptr + k_at)
                v = tl.load(v_ptr + k_at)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # (BLOCK_Q, BLOCK_K)
            if masked:
                allowed = keys[None, :] < S
                if CAUSAL:
                    allowed = allowed & (keys[None, :] <= queries[:, None] + (S - T))
                scores = tl.where(allowed, scores, float("-inf"))
            m_new = tl.maximum(m, tl.max(scores, axis=1))
            subtracted = m_new
            if masked:  # a row that has seen no key yet: −∞ − (−∞) would be NaN
                subtracted = tl.where(m_new == float("-inf"), 0.0, m_new)
            p = tl.exp2(scores - subtracted[:, None])
            factor = tl.exp2(m - subtracted)
            total = total * factor + tl.sum(p, axis=1)
            accumulator = accumulator * factor[:, None]
            accumulator = tl.dot(p.to(v.dtype), v, accumulator, input_precision="ieee")
            m = m_new
    divisor = tl.where(total == 0.0, 1.0, total)
    output = accumulator / divisor[:, None]
    tl.store(output_ptr + q_at, output.to(q.dtype), mask=queries[:, None] < T)
    logsumexp = (m + tl.log2(divisor)) * 0.6931471805599453
    tl.store(logsumexp_ptr + head * T + queries, logsumexp, mask=queries < T)
    ### END SOLUTION


@triton.jit
def flash_backward_dq_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    grad_output_ptr,
    logsumexp_ptr,
    delta_ptr,
    dq_ptr,
    T,
    S,
    scale,
    d: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Gradient by one tile of queries of one head: program (i, n) has tile i of head n.

    Args:
        q_ptr: queries, (N, T, d), row after row, float16, bfloat16 or float32.
        k_ptr: keys, (N, S, d), same dtype.
        v_ptr: values, (N, S, d), same dtype.
        grad_output_ptr: gradient by the output, (N, T, d), same dtype.
        logsumexp_ptr: of the forward pass, (N, T), float32.
        delta_ptr: sum of grad_output · output over each row, (N, T), float32.
        dq_ptr: result, (N, T, d), dtype of q.
        T, S, scale, d, CAUSAL, BLOCK_Q, BLOCK_K: as for flash_forward_kernel.

    The grid is (⌈T / BLOCK_Q⌉, N). Sums are kept in float32. A query that sees no key gets zeros.
    Tiles in which no query sees a key are not loaded.
    """
    ### BEGIN SOLUTION
    tile = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    queries = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    width = tl.arange(0, d)
    q_at = (head * T + queries[:, None]) * d + width[None, :]  # (BLOCK_Q, d)
    inside = queries < T
    q = tl.load(q_ptr + q_at, mask=inside[:, None], other=0.0)
    g = tl.load(grad_output_ptr + q_at, mask=inside[:, None], other=0.0)
    # exp(score − ∞) = 0: the weights of rows behind the end, and of queries that see no key
    logsumexp = tl.load(logsumexp_ptr + head * T + queries, mask=inside, other=float("inf"))
    logsumexp = tl.where(logsumexp == float("-inf"), float("inf"), logsumexp)
    delta = tl.load(delta_ptr + head * T + queries, mask=inside, other=0.0)
    dq = tl.zeros((BLOCK_Q, d), tl.float32)
    end = S
    if CAUSAL:
        end = tl.minimum(S, tile * BLOCK_Q + BLOCK_Q + S - T)
    for start in range(0, end, BLOCK_K):
        keys = start + tl.arange(0, BLOCK_K)
        k_at = (head * S + keys[:, None]) * d + width[None, :]  # (BLOCK_K, d)
        k = tl.load(k_ptr + k_at, mask=keys[:, None] < S, other=0.0)
        v = tl.load(v_ptr + k_at, mask=keys[:, None] < S, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # (BLOCK_Q, BLOCK_K)
        allowed = keys[None, :] < S
        if CAUSAL:
            allowed = allowed & (keys[None, :] <= queries[:, None] + (S - T))
        scores = tl.where(allowed, scores, float("-inf"))
        p = tl.exp(scores - logsumexp[:, None])
        dp = tl.dot(g, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    tl.store(dq_ptr + q_at, (dq * scale).to(q.dtype), mask=inside[:, None])
    ### END SOLUTION


@triton.jit
def flash_backward_dkv_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    grad_output_ptr,
    logsumexp_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    T,
    S,
    scale,
    d: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Gradients by one tile of keys and values of one head: program (j, n) has tile j of head n.

    Args:
        q_ptr: queries, (N, T, d), row after row, float16, bfloat16 or float32.
        k_ptr: keys, (N, S, d), same dtype.
        v_ptr: values, (N, S, d), same dtype.
        grad_output_ptr: gradient by the output, (N, T, d), same dtype.
        logsumexp_ptr: of the forward pass, (N, T), float32.
        delta_ptr: sum of grad_output · output over each row, (N, T), float32.
        dk_ptr: result, (N, S, d), dtype of k.
        dv_ptr: result, (N, S, d), dtype of v.
        T, S, scale, d, CAUSAL, BLOCK_Q, BLOCK_K: as for flash_forward_kernel.

    The grid is (⌈S / BLOCK_K⌉, N). Sums are kept in float32. A key that no query sees gets zeros.
    Tiles in which no query sees a key are not loaded.
    """
    ### BEGIN SOLUTION
    tile = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    keys = tile * BLOCK_K + tl.arange(0, BLOCK_K)
    width = tl.arange(0, d)
    k_at = (head * S + keys[:, None]) * d + width[None, :]  # (BLOCK_K, d)
    k = tl.load(k_ptr + k_at, mask=keys[:, None] < S, other=0.0)
    v = tl.load(v_ptr + k_at, mask=keys[:, None] < S, other=0.0)
    dk = tl.zeros((BLOCK_K, d), tl.float32)
    dv = tl.zeros((BLOCK_K, d), tl.float32)
    first = 0
    if CAUSAL:  # the first query that sees the tile's first key
        first = tl.maximum(0, tile * BLOCK_K - (S - T)) // BLOCK_Q * BLOCK_Q
    for start in range(first, T, BLOCK_Q):
        queries = start + tl.arange(0, BLOCK_Q)
        inside = queries < T
        q_at = (head * T + queries[:, None]) * d + width[None, :]  # (BLOCK_Q, d)
        q = tl.load(q_ptr + q_at, mask=inside[:, None], other=0.0)
        g = tl.load(grad_output_ptr + q_at, mask=inside[:, None], other=0.0)
        # exp(score − ∞) = 0: the weights of rows behind the end, and of queries that see no key
        logsumexp = tl.load(logsumexp_ptr + head * T + queries, mask=inside, other=float("inf"))
        logsumexp = tl.where(logsumexp == float("-inf"), float("inf"), logsumexp)
        delta = tl.load(delta_ptr + head * T + queries, mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # (BLOCK_Q, BLOCK_K)
        if CAUSAL:
            allowed = keys[None, :] <= queries[:, None] + (S - T)
            scores = tl.where(allowed, scores, float("-inf"))
        p = tl.exp(scores - logsumexp[:, None])
        dv = tl.dot(tl.trans(p.to(g.dtype)), g, dv, input_precision="ieee")
        dp = tl.dot(g, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision="ieee")
    tl.store(dk_ptr + k_at, (dk * scale).to(k.dtype), mask=keys[:, None] < S)
    tl.store(dv_ptr + k_at, dv.to(k.dtype), mask=keys[:, None] < S)
    ### END SOLUTION


def triton_logsumexp(x: Tensor, *, block: int = 128) -> Tensor:
    """Logsumexp over the last axis by ``logsumexp_kernel``.

    Args:
        x: shape (..., S), float32.
        block: scores loaded together, a power of two.

    Returns:
        Shape (...), float32.
    """
    rows = x.contiguous().view(-1, x.shape[-1])  # (N, S)
    result = torch.empty(rows.shape[0], device=x.device)  # (N,)
    logsumexp_kernel[(rows.shape[0],)](rows, result, rows.shape[1], BLOCK=block)
    return result.view(x.shape[:-1])


def triton_flash_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
    **options: int,
) -> tuple[Tensor, Tensor]:
    """``flash_forward`` by ``flash_forward_kernel``.

    Args:
        q: queries, shape (..., T, d), float16, bfloat16 or float32; d a power of two from 16.
        k: keys, shape (..., S, d), same dtype.
        v: values, shape (..., S, d), same dtype.
        causal: as in ``flash_forward``.
        block_q: queries of a tile, a power of two from 16.
        block_k: keys of a tile, a power of two from 16.
        options: ``num_warps`` and ``num_stages`` of the compiled kernel.

    Returns:
        Output, shape (..., T, d), of the inputs' dtype, and logsumexp, shape (..., T), float32.
    """
    T, S, d = q.shape[-2], k.shape[-2], q.shape[-1]
    for size in (block_q, block_k, d):  # what tl.arange and a GPU's tl.dot take
        assert size in (16, 32, 64, 128, 256), f"{size} is no power of two from 16 to 256"
    if q.dtype == torch.bfloat16 and not q.is_cuda:
        # The interpreter multiplies the bits of bfloat16 as if they were integers.
        output, logsumexp = triton_flash_forward(
            q.float(), k.float(), v.float(), causal=causal, block_q=block_q, block_k=block_k
        )
        return output.to(q.dtype), logsumexp
    N = q.shape[:-2].numel()
    output = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    logsumexp = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    flash_forward_kernel[(-(-T // block_q), N)](
        q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        output,
        logsumexp,
        T,
        S,
        1 / math.sqrt(d),
        d=d,
        CAUSAL=causal,
        BLOCK_Q=block_q,
        BLOCK_K=block_k,
        **options,
    )
    return output, logsumexp


def triton_flash_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    grad_output: Tensor,
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
    **options: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """``flash_backward`` by ``flash_backward_dq_kernel`` and ``flash_backward_dkv_kernel``.

    Args:
        q: queries, shape (..., T, d), float16, bfloat16 or float32; d a power of two from 16.
        k: keys, shape (..., S, d), same dtype.
        v: values, shape (..., S, d), same dtype.
        output: of the forward pass, shape (..., T, d).
        logsumexp: of the forward pass, shape (..., T), float32.
        grad_output: gradient by the output, shape (..., T, d).
        causal: as in ``flash_forward``.
        block_q: queries of a tile, a power of two from 16.
        block_k: keys of a tile, a power of two from 16.
        options: ``num_warps`` and ``num_stages`` of the compiled kernels.

    Returns:
        Gradients by q, k and v: their shapes and dtype.
    """
    T, S, d = q.shape[-2], k.shape[-2], q.shape[-1]
    for size in (block_q, block_k, d):  # what tl.arange and a GPU's tl.dot take
        assert size in (16, 32, 64, 128, 256), f"{size} is no power of two from 16 to 256"
    if q.dtype == torch.bfloat16 and not q.is_cuda:
        # The interpreter multiplies the bits of bfloat16 as if they were integers.
        wide = [x.float() for x in (q, k, v, output, logsumexp, grad_output)]
        dq, dk, dv = triton_flash_backward(*wide, causal=causal, block_q=block_q, block_k=block_k)
        return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)
    N = q.shape[:-2].numel()
    q, k, v, grad_output = (x.contiguous() for x in (q, k, v, grad_output.to(q.dtype)))
    delta = (grad_output.float() * output.float()).sum(dim=-1)  # (..., T)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    given = (q, k, v, grad_output, logsumexp.contiguous(), delta)
    sizes: dict[str, Any] = {"d": d, "CAUSAL": causal, "BLOCK_Q": block_q, "BLOCK_K": block_k}
    scale = 1 / math.sqrt(d)
    flash_backward_dq_kernel[(-(-T // block_q), N)](*given, dq, T, S, scale, **sizes, **options)
    flash_backward_dkv_kernel[(-(-S // block_k), N)](
        *given, dk, dv, T, S, scale, **sizes, **options
    )
    return dq, dk, dv


def combine_splits(outputs: Tensor, logsumexps: Tensor) -> tuple[Tensor, Tensor]:
    """Join attention over parts of the keys into attention over all of them.

    Args:
        outputs: attention of the same queries over each of N parts of the keys, (N, ..., d).
        logsumexps: the logsumexp of the scores of each part, (N, ...); −∞ where a query saw none
            of the part's keys (its output is then zero).

    Returns:
        Output, shape (..., d), and logsumexp, shape (...), as if all keys had been one part. A
        query that saw no key in any part gets zeros and −∞.

    Source: Dao et al. 2023, "Flash-Decoding for long-context inference".
    """
    ### BEGIN SOLUTION
    m = logsumexps.amax(dim=0)  # (...)
    # A query that saw nothing: −∞ − (−∞) would be NaN, −∞ − 0 is what is meant.
    subtracted = m.masked_fill(m == -math.inf, 0.0)
    shares = torch.exp(logsumexps - subtracted)  # (N, ...): each part's sum of exponentials
    total = shares.sum(dim=0)  # (...)
    weights = shares / total.masked_fill(total == 0, 1.0)
    output = (weights.unsqueeze(-1) * outputs).sum(dim=0)  # (..., d)
    return output.to(outputs.dtype), m + torch.log(total)
    ### END SOLUTION
