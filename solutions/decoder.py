"""Causal masks, the decoder, the whole Transformer, and how it writes: one token after another.

Letters: ``B`` batch, ``T`` target length, ``S`` source or key length, ``D`` model width, ``H``
heads, ``d`` = D / H width of a head, ``F`` feed-forward width, ``N`` layers, ``V`` vocabulary. A
boolean mask is True where attention is allowed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from solutions.attention import padding_mask
from solutions.embeddings import TokenEmbedding, cross_entropy
from solutions.encoder import Encoder, FeedForward, LayerNorm, Residual
from solutions.multi_head import MultiHeadAttention
from solutions.positional_encoding import SinusoidalPositions

__all__ = [
    "BorrowedDecoderLayer",
    "Decoder",
    "DecoderLayer",
    "KeyValueCache",
    "LanguageModel",
    "Transformer",
    "causal_mask",
    "decoder_mask",
    "future_test",
    "greedy_decode",
    "next_probabilities",
    "sample_next",
    "shift_right",
    "teacher_forcing_loss",
]


def causal_mask(T: int, S: int | None = None, *, device: torch.device | None = None) -> Tensor:
    """Mask that hides from each query what comes after it.

    Args:
        T: number of queries: the last T positions of a sequence.
        S: number of keys: all positions of that sequence; T by default.
        device: where the mask is made.

    Returns:
        Boolean, shape (T, S), True where attention is allowed: the last query sees the last key,
        the query before it all keys but the last, and so on; each query sees itself.

    Source: Vaswani et al. 2017, section 3.2.3.
    """
    ### BEGIN SOLUTION
    S = T if S is None else S
    query = torch.arange(T, device=device).unsqueeze(1) + (S - T)  # (T, 1), as positions among keys
    key = torch.arange(S, device=device)  # (S,)
    return key <= query  # (T, S)
    ### END SOLUTION


def decoder_mask(ids: Tensor, padding_id: int = 0) -> Tensor:
    """Mask for the decoder's self-attention: hides what comes later, and hides padding.

    Args:
        ids: token ids that the decoder reads, shape (B, T), integer; padding may stand anywhere.
        padding_id: the id that fills short sequences up.

    Returns:
        Boolean, shape (B, 1, T, T), True where attention is allowed; broadcasts over the heads.
    """
    ### BEGIN SOLUTION
    real = padding_mask(ids, padding_id).unsqueeze(1)  # (B, 1, 1, T)
    return real & causal_mask(ids.size(1), device=ids.device)  # (B, 1, T, T)
    ### END SOLUTION


class KeyValueCache:
    """Keys and values of one attention, kept from call to call.

    Attributes:
        length: how many positions it holds; 0 at first.
    """

    def __init__(self) -> None:
        ### BEGIN SOLUTION
        self.keys: Tensor | None = None  # (B, H_kv, length, d)
        self.values: Tensor | None = None
        self.length = 0
        ### END SOLUTION

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new positions.

        Args:
            k, v: shape (B, H_kv, T, d); T may be any number, 0 included.

        Returns:
            All keys and all values so far, shape (B, H_kv, length, d) each, the oldest first.
        """
        ### BEGIN SOLUTION
        if self.keys is None or self.values is None:
            self.keys, self.values = k, v
        else:
            self.keys = torch.cat([self.keys, k], dim=-2)
            self.values = torch.cat([self.values, v], dim=-2)
        self.length = self.keys.size(-2)
        return self.keys, self.values
        ### END SOLUTION


def future_test(layer: Callable[[Tensor], Tensor]) -> None:
    """Test somebody's layer: does every output see the past, itself, and nothing of the future?

    Args:
        layer: called as ``layer(x)`` with x (B, T, D), floating point, any sizes; returns
            (B, T, D). It promises that output t depends on each of x[:, 0] … x[:, t] and on
            nothing that comes later.

    Raises:
        AssertionError: the layer does not keep its promise.
    """
    ### BEGIN SOLUTION
    B, T, D = 2, 7, 4
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(B, T, D, generator=noise)
    before = layer(x.clone())
    assert before.shape == (B, T, D)
    for t in range(T):
        for b in range(B):  # one sequence at a time: a leak in one of them is a leak
            changed = x.clone()
            changed[b, t] += torch.randn(D, generator=noise)
            moved = (layer(changed) - before)[b].abs().amax(dim=-1)  # (T,)
            # x is about 1 and float32 rounds at 1e-7: what is not moved stays far below 1e-5
            assert (moved[:t] < 1e-5).all(), f"x[{t}] reaches back"
            assert (moved[t:] > 1e-5).all(), f"x[{t}] is not seen by itself or by a later output"
    ### END SOLUTION


class DecoderLayer(nn.Module):
    """One layer of the decoder: masked self-attention, cross-attention, feed-forward.

    Args:
        D: model width.
        H: heads of both attentions.
        F: feed-forward width.
        dropout: of the residuals, and of nothing else.
        norm_first: pre-norm where True, post-norm where False.
        activation: of the feed-forward network.
        cross: whether there is cross-attention; without it this is a layer of a language model.

    Attributes:
        self_attention: ``MultiHeadAttention(D, H)``.
        cross_attention: ``MultiHeadAttention(D, H)``; only where ``cross``.
        feed_forward: ``FeedForward(D, F, activation)``.
        residuals: ``nn.ModuleList`` of a ``Residual`` for each of the sub-layers, in this order:
            three of them, or two without cross-attention.

    Source: Vaswani et al. 2017, sections 3.1 and 3.2.3 and figure 1 (right).
    """

    def __init__(
        self,
        D: int,
        H: int,
        F: int,
        *,
        dropout: float = 0.1,
        norm_first: bool = True,
        activation: str = "relu",
        cross: bool = True,
    ) -> None:
        super().__init__()
        self.cross = cross
        ### BEGIN SOLUTION
        self.self_attention = MultiHeadAttention(D, H)
        if cross:
            self.cross_attention = MultiHeadAttention(D, H)
        self.feed_forward = FeedForward(D, F, activation)
        self.residuals = nn.ModuleList(
            Residual(D, dropout, norm_first) for _ in range(3 if cross else 2)
        )
        ### END SOLUTION

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        *,
        memory_cache: Any = None,
        **attention: Any,
    ) -> Tensor:
        """Look at the past, then at the memory, then work on each position by itself.

        Args:
            x: shape (B, T, D).
            memory: what the encoder made of the source, shape (B, S, D); not used without
                cross-attention.
            mask: of the self-attention; boolean, broadcastable to (B, H, T, T), or with a cache to
                (B, H, T, cached + T).
            memory_mask: of the cross-attention; boolean, broadcastable to (B, H, T, S).
            memory_cache: handed on to the cross-attention as its ``cache``.
            **attention: handed on to the self-attention as they are (``bias``, ``rotary``,
                ``cache``).

        Returns:
            Shape (B, T, D).

        Raises:
            ValueError: cross-attention without a memory.
        """
        if self.cross and memory is None:
            raise ValueError("a decoder layer with cross-attention needs the memory")
        if memory is not None and memory_cache is not None and memory_cache.length:
            memory = memory[:, :0]  # its keys and values are in the cache already
        ### BEGIN SOLUTION
        residuals = iter(self.residuals)
        x = next(residuals)(x, lambda h: self.self_attention(h, mask=mask, **attention)[0])
        if self.cross:
            x = next(residuals)(
                x,
                lambda h: self.cross_attention(h, memory, mask=memory_mask, cache=memory_cache)[0],
            )
        return next(residuals)(x, self.feed_forward)
        ### END SOLUTION

    def new_cache(self) -> tuple[KeyValueCache, KeyValueCache]:
        """Empty caches: for the self-attention (``cache``), and ``memory_cache``."""
        return KeyValueCache(), KeyValueCache()


class Decoder(nn.Module):
    """The decoder: N layers of one kind, each with its own weights, then the last norm.

    Args:
        D: model width.
        H: heads.
        F: feed-forward width.
        N: number of layers; 6 in the paper.
        dropout, norm_first, activation, cross: of every layer.

    Attributes:
        layers: ``nn.ModuleList`` of N ``DecoderLayer``.
        norm: ``LayerNorm(D)`` where ``norm_first``, else ``nn.Identity()``.

    Source: Vaswani et al. 2017, section 3.1; Xiong et al. 2020, table 1 (the last norm).
    """

    def __init__(
        self,
        D: int,
        H: int,
        F: int,
        N: int,
        *,
        dropout: float = 0.1,
        norm_first: bool = True,
        activation: str = "relu",
        cross: bool = True,
    ) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        self.layers = nn.ModuleList(
            DecoderLayer(
                D, H, F, dropout=dropout, norm_first=norm_first, activation=activation, cross=cross
            )
            for _ in range(N)
        )
        self.norm = LayerNorm(D) if norm_first else nn.Identity()
        ### END SOLUTION

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        *,
        cache: Sequence[tuple[KeyValueCache, KeyValueCache]] | None = None,
        **attention: Any,
    ) -> Tensor:
        """Run the layers one after the other, then the last norm.

        Args:
            x: shape (B, T, D), embedded, with positions.
            memory: shape (B, S, D): every layer looks at the encoder's last output.
            mask: of the self-attentions; boolean, broadcastable to (B, H, T, T).
            memory_mask: of the cross-attentions; boolean, broadcastable to (B, H, T, S).
            cache: what ``new_cache`` gave, a pair for each layer: its ``cache`` and its
                ``memory_cache``. x then holds the positions that are new.
            **attention: handed on to every layer (``bias``, ``rotary``).

        Returns:
            Shape (B, T, D).
        """
        ### BEGIN SOLUTION
        for i, layer in enumerate(self.layers):
            own, of_memory = (None, None) if cache is None else cache[i]
            x = layer(x, memory, mask, memory_mask, cache=own, memory_cache=of_memory, **attention)
        return self.norm(x)
        ### END SOLUTION

    def new_cache(self) -> list[tuple[KeyValueCache, KeyValueCache]]:
        """Empty caches, a pair for each layer."""
        return [(KeyValueCache(), KeyValueCache()) for _ in self.layers]


def shift_right(targets: Tensor, start_id: int) -> Tensor:
    """What the decoder reads while it learns to write ``targets``.

    Args:
        targets: token ids, shape (B, T), integer.
        start_id: the id that stands before the first token.

    Returns:
        Shape (B, T), same dtype: the start sign, then all targets but the last.

    Source: Vaswani et al. 2017, section 3.1 ("offset by one position").
    """
    ### BEGIN SOLUTION
    start = torch.full_like(targets[:, :1], start_id)  # (B, 1)
    return torch.cat([start, targets[:, :-1]], dim=1)  # (B, T)
    ### END SOLUTION


def teacher_forcing_loss(
    model: Callable[[Tensor, Tensor], Tensor],
    source: Tensor,
    targets: Tensor,
    start_id: int,
    padding_id: int = 0,
) -> Tensor:
    """Mean loss of all targets at once, each predicted from the right tokens before it.

    Args:
        model: called once, as ``model(source, inputs)`` with the source (B, S) and what the decoder
            reads (B, T); returns logits (B, T, V).
        source: token ids, shape (B, S).
        targets: token ids to be written, shape (B, T), padded at the end.
        start_id: the id that stands before the first token.
        padding_id: targets with this id do not count.

    Returns:
        Scalar: the mean cross-entropy over the targets that count, in nats.
    """
    ### BEGIN SOLUTION
    logits = model(source, shift_right(targets, start_id))  # (B, T, V)
    return cross_entropy(logits, targets, ignore_id=padding_id)
    ### END SOLUTION


class Transformer(nn.Module):
    """The whole Transformer: an encoder reads the source, a decoder writes the target.

    Args:
        V_source, V_target: vocabularies of source and target.
        D: model width; 512 in the paper.
        H: heads; 8 in the paper.
        F: feed-forward width; 2048 in the paper.
        N: layers of the encoder, and of the decoder; 6 in the paper.
        dropout: of the residuals and of the embedded tokens.
        norm_first, activation: of every layer.
        padding_id: this id is padding, in source and target.
        max_length: the longest source or target.
        shared: one matrix for both embeddings and the output map; needs V_source = V_target.

    Attributes:
        source_embedding, target_embedding: ``TokenEmbedding``, scaled by √D.
        positions: ``SinusoidalPositions(D, max_length, dropout)``.
        encoder: ``Encoder``.
        decoder: ``Decoder``.
        output: ``nn.Linear(D, V_target, bias=False)``.
        padding_id: as given.

    Raises:
        ValueError: ``shared``, and the vocabularies differ in size.

    Source: Vaswani et al. 2017, section 3 and figure 1; section 3.4 for ``shared``.
    """

    def __init__(
        self,
        V_source: int,
        V_target: int,
        D: int,
        H: int,
        F: int,
        N: int,
        *,
        dropout: float = 0.1,
        norm_first: bool = True,
        activation: str = "relu",
        padding_id: int = 0,
        max_length: int = 512,
        shared: bool = False,
    ) -> None:
        super().__init__()
        if shared and V_source != V_target:
            raise ValueError(
                f"vocabularies of {V_source} and {V_target} cannot share one matrix; give both the "
                "same size, or shared=False"
            )
        self.padding_id = padding_id
        self.source_embedding = TokenEmbedding(V_source, D, scale=True)
        self.target_embedding = (
            self.source_embedding if shared else TokenEmbedding(V_target, D, scale=True)
        )
        self.positions = SinusoidalPositions(D, max_length, dropout)
        kind: dict[str, Any] = {
            "dropout": dropout,
            "norm_first": norm_first,
            "activation": activation,
        }
        self.encoder = Encoder(D, H, F, N, **kind)
        self.decoder = Decoder(D, H, F, N, **kind)
        self.output = nn.Linear(D, V_target, bias=False)
        if shared:
            self.output.weight = self.target_embedding.weight

    def source_mask(self, source: Tensor) -> Tensor:
        """The mask that hides the source's padding, from the encoder as from the decoder.

        Args:
            source: token ids, shape (B, S).

        Returns:
            Boolean, shape (B, 1, 1, S).
        """
        return padding_mask(source, self.padding_id).unsqueeze(1)  # (B, 1, 1, S)

    def encode(self, source: Tensor) -> Tensor:
        """Read the source.

        Args:
            source: token ids, shape (B, S), padded with ``padding_id``.

        Returns:
            The memory, shape (B, S, D).
        """
        ### BEGIN SOLUTION
        x = self.positions(self.source_embedding(source))  # (B, S, D)
        return self.encoder(x, self.source_mask(source))
        ### END SOLUTION

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None = None,
        *,
        cache: Sequence[tuple[KeyValueCache, KeyValueCache]] | None = None,
    ) -> Tensor:
        """Logits for the token after each token of ``target``.

        Args:
            target: token ids, shape (B, T), the start sign first. With a cache: those that are new,
                without padding.
            memory: what ``encode`` gave, shape (B, S, D).
            memory_mask: ``source_mask`` of the source.
            cache: what ``new_cache`` gave.

        Returns:
            Logits, shape (B, T, V_target).
        """
        if cache is None:
            offset, mask = 0, decoder_mask(target, self.padding_id)  # (B, 1, T, T)
        else:
            offset, T = cache[0][0].length, target.size(1)
            mask = causal_mask(T, offset + T, device=target.device)
        ### BEGIN SOLUTION
        x = self.positions(self.target_embedding(target), offset)  # (B, T, D)
        x = self.decoder(x, memory, mask, memory_mask, cache=cache)
        return self.output(x)  # (B, T, V_target)
        ### END SOLUTION

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits for the token after each token of ``target``, given the source.

        Args:
            source: token ids, shape (B, S), padded.
            target: token ids that the decoder reads, shape (B, T), padded: the targets, shifted.

        Returns:
            Logits, shape (B, T, V_target).
        """
        ### BEGIN SOLUTION
        return self.decode(target, self.encode(source), self.source_mask(source))
        ### END SOLUTION

    def new_cache(self) -> list[tuple[KeyValueCache, KeyValueCache]]:
        """Empty caches for ``decode``."""
        return self.decoder.new_cache()


def greedy_decode(
    model: Callable[[Tensor], Tensor],
    start: Tensor,
    end_id: int,
    max_new: int,
    padding_id: int = 0,
) -> Tensor:
    """Write token after token, each time the most probable one.

    Args:
        model: called as ``model(ids)`` with all ids so far, (B, t); returns logits (B, t, V) for
            the token after each of them.
        start: what stands there already, shape (B, T), T at least 1: the start sign, or a prompt.
        end_id: a sequence is complete when this token has been written; in ``start`` it is a token
            like any other.
        max_new: at most so many tokens are added.
        padding_id: fills the sequences that are complete while others go on.

    Returns:
        Ids, shape (B, T + n), ``start`` included: n is ``max_new``, or less where every sequence
        was complete before; then the model is not called again.
    """
    ### BEGIN SOLUTION
    ids = start
    complete = torch.zeros(ids.size(0), dtype=torch.bool, device=ids.device)  # (B,)
    for _ in range(max_new):
        token = model(ids)[:, -1].argmax(dim=-1)  # (B,)
        token = token.masked_fill(complete, padding_id)
        ids = torch.cat([ids, token.unsqueeze(1)], dim=1)
        complete = complete | (token == end_id)
        if complete.all():
            break
    return ids
    ### END SOLUTION


def next_probabilities(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """The distribution that the next token is drawn from: temperature, then top-k, then top-p.

    Args:
        logits: shape (..., V), floating point.
        temperature: logits are divided by it; 0 leaves the most probable token alone.
        top_k: only the k most probable tokens stay, V of them where k is larger; at least 1.
        top_p: of those, only the most probable ones stay that are needed to reach this share of
            their probability: the smallest number of tokens whose sum is at least ``top_p``, which
            is above 0.

    Returns:
        Probabilities, shape (..., V): 0 for what does not stay; what stays sums to 1.

    Source: Fan, Lewis and Dauphin 2018, section 5 (top-k); Holtzman et al. 2020, section 3.1
    (top-p, equations 2 and 3) and section 3.3 (temperature).
    """
    ### BEGIN SOLUTION
    V = logits.size(-1)
    if temperature == 0.0:
        return torch.zeros_like(logits).scatter(-1, logits.argmax(dim=-1, keepdim=True), 1.0)
    ordered, order = torch.sort(logits / temperature, dim=-1, descending=True)
    if top_k is not None:
        rank = torch.arange(V, device=logits.device)
        ordered = ordered.masked_fill(rank >= top_k, float("-inf"))
    p = torch.softmax(ordered, dim=-1)
    if top_p is not None:
        before = p.cumsum(dim=-1) - p  # what the more probable tokens have reached already
        p = p.masked_fill(before >= top_p, 0.0)
        p = p / p.sum(dim=-1, keepdim=True)
    return torch.zeros_like(p).scatter(-1, order, p)  # back in the order of the vocabulary
    ### END SOLUTION


def sample_next(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """Draw the next token of each sequence, with torch's generator.

    Args:
        logits: shape (B, V): the model's logits for the next token.
        temperature, top_k, top_p: as for ``next_probabilities``.

    Returns:
        Token ids, shape (B,), int64; each sequence draws for itself.
    """
    ### BEGIN SOLUTION
    p = next_probabilities(logits, temperature, top_k, top_p)  # (B, V)
    return torch.multinomial(p, num_samples=1).squeeze(1)  # (B,)
    ### END SOLUTION


class LanguageModel(nn.Module):
    """A decoder-only model: the same layers without cross-attention, one sequence that goes on.

    Args:
        V: vocabulary.
        D: model width.
        H: heads.
        F: feed-forward width.
        N: layers.
        dropout: of the residuals and of the embedded tokens.
        norm_first, activation: of every layer.
        padding_id: this id is padding; None where there is none.
        max_length: the longest sequence.

    Attributes:
        embedding: ``TokenEmbedding(V, D, scale=True)``.
        positions: ``SinusoidalPositions(D, max_length, dropout)``.
        decoder: ``Decoder`` without cross-attention.
        output: ``nn.Linear(D, V, bias=False)``.

    Source: Liu et al. 2018, section 4.2.3 (decoder-only); Radford et al. 2018, section 3.1.
    """

    def __init__(
        self,
        V: int,
        D: int,
        H: int,
        F: int,
        N: int,
        *,
        dropout: float = 0.1,
        norm_first: bool = True,
        activation: str = "relu",
        padding_id: int | None = None,
        max_length: int = 512,
    ) -> None:
        super().__init__()
        self.padding_id = padding_id
        ### BEGIN SOLUTION
        self.embedding = TokenEmbedding(V, D, scale=True)
        self.positions = SinusoidalPositions(D, max_length, dropout)
        self.decoder = Decoder(
            D, H, F, N, dropout=dropout, norm_first=norm_first, activation=activation, cross=False
        )
        self.output = nn.Linear(D, V, bias=False)
        ### END SOLUTION

    def forward(
        self, ids: Tensor, *, cache: Sequence[tuple[KeyValueCache, KeyValueCache]] | None = None
    ) -> Tensor:
        """Logits for the token after each token of ``ids``.

        Args:
            ids: token ids, shape (B, T). With a cache: those that are new, without padding.
            cache: what ``new_cache`` gave.

        Returns:
            Logits, shape (B, T, V).
        """
        ### BEGIN SOLUTION
        T = ids.size(1)
        offset = 0 if cache is None else cache[0][0].length
        mask = causal_mask(T, offset + T, device=ids.device)
        if cache is None and self.padding_id is not None:
            mask = decoder_mask(ids, self.padding_id)
        x = self.positions(self.embedding(ids), offset)  # (B, T, D)
        return self.output(self.decoder(x, mask=mask, cache=cache))  # (B, T, V)
        ### END SOLUTION

    def new_cache(self) -> list[tuple[KeyValueCache, KeyValueCache]]:
        """Empty caches for ``forward``."""
        return self.decoder.new_cache()


class BorrowedDecoderLayer(nn.Module):
    """A post-norm decoder layer, written by somebody else.

    Args:
        D: model width.
        H: heads; divides D.
        F: feed-forward width.

    Attributes:
        self_attn, cross_attn: ``MultiHeadAttention(D, H)``.
        ffn: ``nn.Sequential`` of ``nn.Linear(D, F)``, ``nn.ReLU()``, ``nn.Linear(F, D)``.
        norm1, norm2, norm3: ``nn.LayerNorm(D)``, after self-attention, cross-attention and ffn.

    ``forward`` takes x (B, T, D), memory (B, S, D) and a mask of the memory's padding, boolean and
    broadcastable to (B, H, T, S), True where attention is allowed; it returns (B, T, D). Each
    output sees itself, what comes before it, and the memory.
    """

    ### BEGIN SOLUTION
    def __init__(self, D: int, H: int, F: int) -> None:
        super().__init__()
        self.self_attn = MultiHeadAttention(D, H)
        self.cross_attn = MultiHeadAttention(D, H)
        self.ffn = nn.Sequential(nn.Linear(D, F), nn.ReLU(), nn.Linear(F, D))
        self.norm1 = nn.LayerNorm(D)
        self.norm2 = nn.LayerNorm(D)
        self.norm3 = nn.LayerNorm(D)

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None) -> Tensor:
        T = x.size(1)
        target_mask = torch.tril(torch.ones(T, T, dtype=torch.bool, device=x.device))
        attended, _ = self.self_attn(x, mask=target_mask)
        x = self.norm1(x + attended)
        attended, _ = self.cross_attn(query=x, key=memory, value=memory, mask=memory_mask)
        x = self.norm2(x + attended)
        return self.norm3(x + self.ffn(x))

    ### END SOLUTION
