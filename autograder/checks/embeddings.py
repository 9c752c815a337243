"""How the answers of chapter ``embeddings`` are judged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from autograder.answer import Answer
from autograder.checking import Cases, Exercise, expect, expect_close, expect_tensor, fail
from autograder.guest import fixtures
from autograder.i18n import _
from autograder.memory import remembered
from autograder.trial import expect_refused, verdicts

# One float32 number copied, or multiplied once.
ONE_STEP = 2e-6
# Logarithm of a sum of a dozen exponentials of float32 numbers below 10.
LOG_SUM = 2e-5

# ------------------------------------------------------------------------------ one_hot_lookup

lookup = Exercise(
    "one_hot_lookup",
    title=_("A look-up is a product"),
    difficulty=1,
    minutes=10,
    hints=(
        _("Which row vector picks row 2 out of a table, when it is multiplied from the left?"),
        _(
            "If torch complains of dtypes, the one-hot rows are integers and the table is not: "
            "convert them to the dtype of the table."
        ),
        _("one_hot(ids, V) as (..., V) in the table's dtype, times the table (V, D)."),
    ),
)


def _expect_rows(answer: Answer, ids: Tensor, weight: Tensor, atol: float = ONE_STEP) -> None:
    expect_close(
        answer(ids, weight),
        weight.double()[ids],
        atol=atol,
        what=_("the result"),
        cause=_("Other rows of the table come out, or they were changed on the way."),
        next_step=_("Take V = 3, D = 2 and ids [2, 0]: the result is rows 2 and 0 of the table."),
    )


@lookup.check(points=0.5)
def one_vector_per_id(answer: Answer, cases: Cases) -> None:
    """The result has the shape of ids, with D behind."""
    B, T, V, D = cases.distinct(4, 2, 9)
    ids, weight = cases.integers(0, V, B, T), cases.normal(V, D)
    expect_tensor(answer(ids, weight), (B, T, D), what=_("the result"))


@lookup.check(points=0.5)
def rows_of_the_table(answer: Answer, cases: Cases) -> None:
    """Each id gives its row of the table."""
    B, T, V, D = cases.distinct(4, 2, 9)
    _expect_rows(answer, cases.integers(0, V, B, T), cases.normal(V, D))


@lookup.check(points=0.5)
def every_row_takes_part(answer: Answer, cases: Cases) -> None:
    """It is a product: a NaN in a row that no id names still spreads, for 0 · NaN is NaN."""
    V, D = cases.distinct(2, 4, 9)
    weight = cases.normal(V, D)
    weight[0] = torch.nan
    ids = cases.integers(1, V, 2, 3)
    ids[0, 0] = V - 1  # the highest occurs, so that the width can be taken from the ids
    found = expect_tensor(answer(ids, weight), (2, 3, D), what=_("the result"))
    expect(
        found.isnan().all(),
        seen=_("A NaN in a row that no id names leaves no trace, so no product was computed."),
        cause=_(
            "Rows are read by their number; the exercise asks for one-hot rows times the table."
        ),
        next_step=_("Make the one-hot rows (..., V) and multiply them with the table (V, D)."),
    )


@lookup.check(points=0.5, hidden=True)
def any_shape_of_ids(answer: Answer, cases: Cases) -> None:
    """Ids may have any shape, one number included; the highest id need not occur."""
    V, D = cases.distinct(2, 4, 9)
    weight = cases.normal(V, D)
    for shape in ((), (3,), (2, 3, 4)):
        _expect_rows(answer, cases.integers(0, V - 1, *shape), weight)


@lookup.check(points=0.5, hidden=True)
def dtype_and_gradient(answer: Answer, cases: Cases) -> None:
    """float64 and float16 tables work; the gradient reaches the rows in use, as often as used."""
    V, D = cases.distinct(2, 4, 9)
    ids = torch.tensor([[1, 1, 0], [3, 1, 0]])
    for dtype in (torch.float64, torch.float16):
        weight = cases.normal(V, D, dtype=dtype)
        found = expect_tensor(answer(ids, weight), (2, 3, D), what=_("the result"), dtype=dtype)
        _expect_same(found, weight.double()[ids])
    cotangent = cases.normal(2, 3, D)
    gradient = answer.run((ids, cases.normal(V, D)), wrt=[1], cotangent=cotangent).grads["1"]
    if gradient is None:
        fail(
            seen=_("No gradient reaches the table."),
            cause=_("The table was detached or copied as data."),
            next_step=_("Multiply with the table itself."),
        )
    expected = torch.zeros(V, D, dtype=torch.float64)
    expected.index_add_(0, ids.flatten(), cotangent.double().flatten(0, 1))
    expect_close(
        gradient,
        expected,
        atol=ONE_STEP * 3,  # the most frequent row sums three cotangents
        what=_("the gradient of the table"),
        cause=_("A row used several times gets the sum of its gradients; others get zero."),
        next_step=_("Write the result as a product of the one-hot rows and the table."),
    )


def _expect_same(found: Tensor, expected: Tensor) -> None:
    expect_close(
        found,
        expected,
        atol=0.0,  # a row multiplied by 1 and added to zeros is exact in any dtype
        what=_("the result"),
        cause=_("The rows went through another dtype."),
        next_step=_("Convert the one-hot rows to the dtype of the table."),
    )


# ------------------------------------------------------------------------------ TokenEmbedding

embedding = Exercise(
    "TokenEmbedding",
    title=_("The embedding layer"),
    difficulty=2,
    minutes=15,
    hints=(
        _("The factor and the padding id are kept by the constructor. Where does each come in?"),
        _(
            "If padding gives something other than zeros after training, the row was trained: no "
            "gradient may reach it."
        ),
        _(
            "x = weight[ids]; where ids equal the padding id, masked_fill with 0; then times the "
            "factor."
        ),
    ),
)


def _layer(answer: Answer, weight: Tensor, **options: Any) -> Answer:
    layer = answer(*weight.shape, **options)
    if not isinstance(layer, Answer):
        fail(
            seen=_("Building the layer gave no layer."),
            cause=_("The name holds a function or a value, not a class."),
            next_step=_("Keep the class of the stub and fill in its method."),
        )
    layer.load({"weight": weight})
    return layer


def _expect_looked_up(layer: Answer, ids: Tensor, expected: Tensor) -> None:
    expect_close(
        layer(ids),
        expected,
        atol=4 * ONE_STEP,  # times √D, below 4
        what=_("the output"),
        cause=_("Rows, factor or padding differ from what the docstring says."),
        next_step=_("Load a weight whose row i is filled with i, and look up 0, 1, 2."),
    )


@embedding.check(points=1)
def looks_rows_up(answer: Answer, cases: Cases) -> None:
    """Without options, each id gives its row."""
    B, T, V, D = cases.distinct(4, 2, 9)
    weight = cases.normal(V, D)
    ids = cases.integers(0, V, B, T)
    _expect_looked_up(_layer(answer, weight), ids, weight.double()[ids])


@embedding.check(points=1)
def scales_by_root_width(answer: Answer, cases: Cases) -> None:
    """With scale=True the rows are multiplied by √D."""
    B, T, V, D = cases.distinct(4, 2, 9)
    weight = cases.normal(V, D)
    ids = cases.integers(0, V, B, T)
    _expect_looked_up(_layer(answer, weight, scale=True), ids, weight.double()[ids] * math.sqrt(D))


@embedding.check(points=0.5)
def padding_gives_zeros(answer: Answer, cases: Cases) -> None:
    """Padding gives zeros, whatever its row holds."""
    B, T, V, D = cases.distinct(4, 3, 9)
    weight = cases.normal(V, D)
    padding = cases.integer(1, V)  # 0 has a check of its own
    ids = cases.integers(0, V, B, T)
    ids[:, -1] = padding
    expected = weight.double().clone()
    expected[padding] = 0
    _expect_looked_up(_layer(answer, weight, padding_id=padding), ids, expected[ids])


@embedding.check(points=0.5, hidden=True)
def padding_gets_no_gradient(answer: Answer, cases: Cases) -> None:
    """The row of the padding gets no gradient; the others get theirs."""
    B, T, V, D = cases.distinct(4, 3, 8)
    padding = cases.integer(1, V)  # 0 has a check of its own
    ids = cases.integers(0, V, B, T)
    ids[:, 0] = padding
    layer = _layer(answer, cases.normal(V, D), padding_id=padding, scale=True)
    cotangent = cases.normal(B, T, D)
    gradient = layer.run((ids,), wrt=["parameters"], cotangent=cotangent).grads.get("weight")
    if gradient is None:
        fail(
            seen=_("No gradient reaches the weight."),
            cause=_("The weight was detached or copied as data."),
            next_step=_("Index the parameter itself."),
        )
    expected = torch.zeros(V, D, dtype=torch.float64)
    expected.index_add_(0, ids.flatten(), cotangent.double().flatten(0, 1) * math.sqrt(D))
    expected[padding] = 0
    expect_close(
        gradient,
        expected,
        atol=1e-4,  # up to 56 cotangents times √D summed in float32
        what=_("the gradient of the weight"),
        cause=_("Padding is trained as well, or rows in use are not."),
        next_step=_("Set the vectors of padding to zero with masked_fill, before the factor."),
    )


@embedding.check(points=0.5, hidden=True)
def padding_id_zero_counts(answer: Answer, cases: Cases) -> None:
    """A padding id of 0 is heeded, and without one nothing is hidden."""
    V, D = cases.distinct(2, 4, 9)
    weight = cases.normal(V, D)
    ids = cases.integers(0, V, 3, 5)
    ids[0, 0] = 0
    expected = weight.double().clone()
    _expect_looked_up(_layer(answer, weight), ids, expected[ids])
    expected[0] = 0
    _expect_looked_up(_layer(answer, weight, padding_id=0), ids, expected[ids])


# ------------------------------------------------------------------------------- cross_entropy

entropy = Exercise(
    "cross_entropy",
    title=_("Cross-entropy from logits"),
    difficulty=3,
    minutes=25,
    hints=(
        _("What is the logarithm of a softmax, without ever computing the softmax?"),
        _(
            "If large logits give inf or nan, an exponential overflows: use logsumexp. If only the "
            "mean is wrong, look at what it divides by."
        ),
        _(
            "log p = logits - logsumexp over V; gather the targets' entries; negative; mean over "
            "the ones that count."
        ),
    ),
    forbid=(
        "cross_entropy",
        "linear_cross_entropy",
        "nll_loss",
        "nll_loss2d",
        "cross_entropy_loss",
        "nll_loss_nd",
    ),
)


def _entropy(logits: Tensor, targets: Tensor, ignore_id: int | None = None) -> Tensor:
    total, counted = torch.zeros((), dtype=torch.float64), 0
    flat = logits.double().flatten(0, -2) if logits.dim() > 1 else logits.double()[None]
    for row, target in zip(flat, targets.flatten().tolist(), strict=True):
        if target != ignore_id:
            total = total + row.logsumexp(-1) - row[target]
            counted += 1
    return total / max(counted, 1)


def _expect_entropy(
    answer: Answer,
    logits: Tensor,
    targets: Tensor,
    ignore_id: int | None = None,
    atol: float = LOG_SUM,
) -> None:
    options = {} if ignore_id is None else {"ignore_id": ignore_id}
    expect_close(
        answer(logits, targets, **options),
        _entropy(logits, targets, ignore_id),
        atol=atol,
        what=_("the loss"),
        cause=_("The logarithm, the axis, the sign, or what the mean divides by is another."),
        next_step=_("Take V = 2 and logits (0, 0): the loss is log 2 = 0.693 for either target."),
    )


@entropy.check(points=0.5)
def even_logits(answer: Answer, cases: Cases) -> None:
    """Equal logits over V choices give log V."""
    V = cases.integer(2, 9)
    _expect_entropy(answer, torch.full((4, V), 0.3), cases.integers(0, V, 4))


@entropy.check(points=1)
def mean_over_all_targets(answer: Answer, cases: Cases) -> None:
    """Logits of shape (B, T, V) give the mean of all B·T losses, as a scalar."""
    B, T, V = cases.distinct(3, 3, 9)
    _expect_entropy(answer, cases.normal(B, T, V, scale=2.0), cases.integers(0, V, B, T))


@entropy.check(points=0.5)
def ignored_targets(answer: Answer, cases: Cases) -> None:
    """Targets with the ignored id do not count, neither in the sum nor in the number."""
    B, T, V = cases.distinct(3, 3, 9)
    targets = cases.integers(1, V, B, T)
    targets[:, -2:] = 0
    _expect_entropy(answer, cases.normal(B, T, V, scale=2.0), targets, ignore_id=0)


@entropy.check(points=1, hidden=True)
def large_logits(answer: Answer, cases: Cases) -> None:
    """Large logits give a finite, right loss."""
    V = cases.integer(4, 9)
    logits = cases.normal(6, V) * 300
    # Numbers of a few hundred have a last place of 3e-5 in float32.
    _expect_entropy(answer, logits, cases.integers(0, V, 6), atol=2e-4)
    _expect_entropy(answer, cases.normal(6, V) - 400, cases.integers(0, V, 6), atol=2e-4)


@entropy.check(points=0.5, hidden=True)
def unusual_ids_and_shapes(answer: Answer, cases: Cases) -> None:
    """An ignored id outside the vocabulary, one row alone, three axes in front; all ignored: 0."""
    V = cases.integer(4, 9)
    targets = cases.integers(0, V, 2, 3, 4)
    targets[0, 0, :2] = -1
    _expect_entropy(answer, cases.normal(2, 3, 4, V), targets, ignore_id=-1)
    _expect_entropy(answer, cases.normal(V), cases.integers(0, V))
    _expect_entropy(answer, cases.normal(3, V), torch.full((3,), -100), ignore_id=-100)


@entropy.check(points=0.5, hidden=True)
def gradient_is_softmax_minus_one_hot(answer: Answer, cases: Cases) -> None:
    """The gradient by the logits is (softmax - one-hot) / number of targets that count."""
    T, V = cases.distinct(2, 4, 9)
    logits, targets = cases.normal(T, V, scale=2.0), cases.integers(0, V - 1, T)
    targets[0] = ignored = V - 1  # not 0, which an answer may take for None
    gradient = answer.run((logits, targets), {"ignore_id": ignored}, wrt=[0]).grads["0"]
    if gradient is None:
        fail(
            seen=_("No gradient reaches the logits."),
            cause=_("The loss was turned into a Python number, or the logits were detached."),
            next_step=_("Return a tensor, computed from the logits themselves."),
        )
    expected = logits.double().softmax(-1) - torch.nn.functional.one_hot(targets, V)
    counted = targets != ignored
    expect_close(
        gradient,
        expected * counted[:, None] / counted.sum(),
        atol=ONE_STEP * 2,
        what=_("the gradient"),
        cause=_("Ignored targets get a gradient, or the mean divides by another number."),
        next_step=_("Sum the losses that count, and divide by how many they are."),
    )


# ---------------------------------------------------------------------------------- perplexity

perplexed = Exercise(
    "perplexity",
    title=_("Perplexity"),
    difficulty=1,
    minutes=5,
    hints=(
        _("A model that finds V choices equally likely has loss log V. What should come out?"),
        _("The loss is in nats: which base undoes the natural logarithm?"),
        _("e to the loss, as a Python float."),
    ),
)


def _expect_perplexity(answer: Answer, loss: float | Tensor) -> None:
    found = answer(loss)
    if isinstance(found, Tensor):
        found = found.item() if found.numel() == 1 else found
    right = math.exp(float(loss))
    expect(
        isinstance(found, int | float) and abs(found - right) <= 1e-5 * right,
        seen=_("The perplexity is another number."),
        cause=_("The loss is in nats, so the base is e; 2 belongs to a loss in bits."),
        next_step=_("A loss of log 4 must give 4."),
    )


@perplexed.check(points=0.5)
def choices_that_are_equally_likely(answer: Answer, cases: Cases) -> None:
    """A loss of log V gives V."""
    _expect_perplexity(answer, math.log(cases.integer(2, 50)))


@perplexed.check(points=0.5, hidden=True)
def tensors_and_floats(answer: Answer, cases: Cases) -> None:
    """A tensor is as good as a float, and a loss of 0 gives 1."""
    _expect_perplexity(answer, cases.uniform(1, low=0.1, high=3.0)[0])
    _expect_perplexity(answer, 0.0)


# -------------------------------------------------------------------------- most_frequent_pair

pairs = Exercise(
    "most_frequent_pair",
    title=_("The most frequent pair"),
    difficulty=2,
    minutes=20,
    hints=(
        _("A word that occurs five times: how often do its pairs occur?"),
        _(
            "If the count is off in words such as (a, a, a): its neighbours are (a, a) twice. If a "
            "tie goes the wrong way, sort by count first and by the pair second."
        ),
        _(
            "Counter over zip(symbols, symbols[1:]), each pair weighted by the word's count; the "
            "minimum of (-count, pair); None if there is none."
        ),
    ),
)

LETTERS = "abcde"


def _words(cases: Cases, count: int) -> list[tuple[list[str], int]]:
    words: list[tuple[list[str], int]] = []
    seen = set()
    while len(words) < count:
        length = cases.integer(1, 7)
        word = [LETTERS[int(i)] for i in cases.integers(0, len(LETTERS), length)]
        if tuple(word) not in seen:
            seen.add(tuple(word))
            words.append((word, cases.integer(1, 9)))
    return words


def _pair_counts(words: list[tuple[list[str], int]]) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for word, times in words:
        for i in range(len(word) - 1):
            pair = (word[i], word[i + 1])
            counts[pair] = counts.get(pair, 0) + times
    return counts


def _expect_no_list(found: Any) -> None:
    expect(
        not isinstance(found, list),
        seen=_("The result is a list; the docstring promises a tuple."),
        cause=_("A list never equals a tuple, so what the page does next would match nothing."),
        next_step=_("Return tuple(...) of it."),
    )


def _expect_pair(answer: Answer, words: list[tuple[list[str], int]]) -> None:
    counts = _pair_counts(words)
    right = min(counts, key=lambda pair: (-counts[pair], pair)) if counts else None
    found = answer([(tuple(word), times) for word, times in words])
    _expect_no_list(found)
    expect(
        found == right,
        seen=_("Another pair comes out than the most frequent one."),
        cause=_(
            "Words count once instead of as often as they occur, pairs are taken over the "
            "border of a word or skipped, or a tie goes another way."
        ),
        next_step=_("Count by hand for the three words of the example in the text."),
    )


@pairs.check(points=1)
def weighted_by_words(answer: Answer, cases: Cases) -> None:
    """A word that occurs n times counts n times."""
    often = cases.integer(5, 9)
    words = [(list("ab"), 1), (list("abc"), 1), (list("dcb"), often)]
    _expect_pair(answer, cases.shuffled(words))


@pairs.check(points=1)
def many_words(answer: Answer, cases: Cases) -> None:
    """The pair of the highest count wins in a larger vocabulary."""
    # the highest count stands at the end of the words, where some counts never look
    _expect_pair(answer, cases.shuffled([(list("abcd"), 4), (list("bacd"), 3)]))
    for count in (6, 9, 12):
        _expect_pair(answer, _words(cases, count))


@pairs.check(points=0.5, hidden=True)
def ties_in_alphabetical_order(answer: Answer, cases: Cases) -> None:
    """Of equally frequent pairs the first in alphabetical order wins."""
    # the first seen is neither the first nor the last in the alphabet
    _expect_pair(answer, [(list("ca"), 3), (list("ed"), 3), (list("ba"), 3), (list("be"), 2)])
    # in either order, so that neither the first nor the last that was seen is right by luck
    tied = [(list("cb"), 2), (list("ca"), 2), (list("d"), 9)]
    _expect_pair(answer, tied)
    _expect_pair(answer, tied[::-1])
    # (a, c) comes before (ab, a), though "aba" comes before "ac"
    _expect_pair(answer, cases.shuffled([(["ab", "a"], 3), (["a", "c"], 3)]))


@pairs.check(points=0.5, hidden=True)
def repeats_and_nothing(answer: Answer, cases: Cases) -> None:
    """Neighbours that repeat count each time; words of one symbol have no pair: None."""
    _expect_pair(answer, [(list("aaaa"), 2), (list("bc"), 5)])
    _expect_pair(answer, [(["a"], 4), (["b"], 1)])
    _expect_pair(answer, [(["th", "e"], 3), (["t", "he"], 2), (["th", "e", "n"], 1)])


# ---------------------------------------------------------------------------------- merge_pair

merging = Exercise(
    "merge_pair",
    title=_("Merge a pair"),
    difficulty=2,
    minutes=15,
    hints=(
        _("After a merge at place i, where does the search go on?"),
        _(
            "If (a, a, a) gives one symbol too few, the merged symbol was merged again; if it "
            "gives too many, the index moved by one after a merge."
        ),
        _("A while loop over i: if the two symbols match, append the joined one and i += 2."),
    ),
)


def _merged(symbols: list[str], pair: tuple[str, str]) -> tuple[str, ...]:
    result: list[str] = []
    skip = False
    for i, symbol in enumerate(symbols):
        if skip:
            skip = False
        elif i + 1 < len(symbols) and (symbol, symbols[i + 1]) == pair:
            result.append(symbol + symbols[i + 1])
            skip = True
        else:
            result.append(symbol)
    return tuple(result)


def _expect_merged(answer: Answer, symbols: list[str], pair: tuple[str, str]) -> None:
    found = answer(tuple(symbols), pair)
    _expect_no_list(found)
    expect(
        found == _merged(symbols, pair),
        seen=_("The symbols after the merge are others."),
        cause=_("An occurrence is missed, merged twice, or symbols are joined that are no pair."),
        next_step=_("Merge (a, a) in (a, a, a) by hand: (aa, a)."),
    )


@merging.check(points=1)
def merges_every_occurrence(answer: Answer, cases: Cases) -> None:
    """Each occurrence is joined, and the rest stays in order."""
    _expect_merged(answer, list("abcab"), ("a", "b"))
    _expect_merged(answer, list("cbabd"), ("a", "b"))


@merging.check(points=1)
def overlaps_from_the_left(answer: Answer, cases: Cases) -> None:
    """Overlapping occurrences are joined from the left."""
    n = 2 * cases.integer(1, 4) + 1  # odd: from the right it would be another word
    _expect_merged(answer, ["a"] * n, ("a", "a"))


@merging.check(points=0.5, hidden=True)
def symbols_of_several_letters(answer: Answer, cases: Cases) -> None:
    """Symbols that were merged before are one symbol: (th, e) is not (t, he)."""
    _expect_merged(answer, ["in", "g", "th", "e"], ("th", "e"))
    _expect_merged(answer, ["th", "e", "t", "he", "th", "e"], ("th", "e"))
    _expect_merged(answer, ["t", "he", "n"], ("th", "e"))


@merging.check(points=0.5, hidden=True)
def random_words(answer: Answer, cases: Cases) -> None:
    """Any word, one without the pair, one symbol and none."""
    for length in (0, 1, 2, 9, 14):
        word = ["ab"[int(i)] for i in cases.integers(0, 2, length)]
        for pair in (("a", "b"), ("b", "a"), ("b", "b")):
            _expect_merged(answer, word, pair)


# --------------------------------------------------------------------------------------- train

training = Exercise(
    "train",
    title=_("The training loop"),
    difficulty=3,
    minutes=25,
    hints=(
        _("In which order do loss, backward, step and zero_grad stand, and why?"),
        _(
            "If the second step is wrong and the first is right, gradients of the first are still "
            "there. If the loop ends early, the batches ran out."
        ),
        _(
            "AdamW over the parameters; for each step: next batch (begin again when they run out), "
            "learning rate times schedule(step), loss, zero_grad, backward, step, keep loss.item()."
        ),
    ),
)

# AdamW divides gradients by their own size, so a rounding in the last place of a small gradient
# can move a weight by a share of the learning rate: measured, 1e-5 after a dozen steps at 0.1.
TRAINED = 1e-4


@remembered
def _trained(
    kind: str,
    state: dict[str, Tensor],
    batches: list[Any],
    steps: int,
    rate: float,
    schedule: Callable[[int], float] | None = None,
) -> tuple[list[float], dict[str, Tensor]]:
    """The loop in float64, with torch's AdamW."""
    inputs, outputs = state_sizes(state)
    model = fixtures.FIXTURES[kind](inputs, outputs)
    model.load_state_dict(state)
    model = model.double()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
    loss = fixtures.squared_error()
    losses = []
    for step in range(steps):
        x, y = batches[step % len(batches)]
        for group in optimizer.param_groups:
            group["lr"] = rate * (schedule(step) if schedule else 1.0)
        value = loss(model, (x.double(), y.double()))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses, {name: tensor.detach() for name, tensor in model.state_dict().items()}


def state_sizes(state: dict[str, Tensor]) -> tuple[int, int]:
    """Inputs and outputs of the last linear layer of a state."""
    weight = [tensor for name, tensor in state.items() if name.endswith("weight")][-1]
    return weight.shape[1], weight.shape[0]


def _expect_training(
    answer: Answer,
    cases: Cases,
    *,
    kind: str = "linear",
    batches: int = 3,
    steps: int = 3,
    rate: float = 0.1,
    schedule: Callable[[int], float] | None = None,
) -> None:
    inputs, outputs, rows = cases.distinct(3, 2, 6)
    data = [(cases.normal(rows, inputs), cases.normal(rows, outputs)) for _i in range(batches)]
    model = answer.fixture(kind, inputs, outputs)
    state = {name: cases.normal(*tensor.shape) for name, tensor in model.state().items()}
    model.load(state)
    loss = answer.fixture("squared_error")
    options: dict[str, Any] = {"learning_rate": rate}
    if schedule is not None:
        options["schedule"] = schedule
    found = answer(model, data, loss, steps, **options)
    losses, after = _trained(kind, state, data, steps, rate, schedule)
    if not isinstance(found, list | tuple) or len(found) != steps:
        fail(
            seen=_("The result is not a list with one loss per step."),
            cause=_("The loop ends early when the batches run out, or nothing is returned."),
            next_step=_("Append one number per step and return the list."),
        )
    expect(
        all(type(value) is float for value in found),
        seen=_("The losses are not plain numbers."),
        cause=_("A loss kept as a tensor keeps its whole graph in memory."),
        next_step=_("Append loss.item()."),
    )
    expect_close(
        torch.tensor(found, dtype=torch.float64),
        torch.tensor(losses, dtype=torch.float64),
        atol=TRAINED,
        rtol=TRAINED,
        what=_("the list of losses"),
        cause=_("A loss is of another moment, or the steps before it went another way."),
        next_step=_("Compare the first loss, then the second: one step lies between them."),
    )
    trained = model.state()
    for name, right in after.items():
        expect_close(
            trained[name],
            right,
            atol=TRAINED,
            what=_("a weight after training"),
            cause=_("Gradients were not cleared, steps are missing, or the rate is another."),
            next_step=_("Do one step on a 1 × 1 model by hand."),
        )


@training.check(points=1)
def one_step(answer: Answer, cases: Cases) -> None:
    """One step gives the loss before it, and moves the weights as AdamW does."""
    _expect_training(answer, cases, batches=1, steps=1)


@training.check(points=1)
def several_steps(answer: Answer, cases: Cases) -> None:
    """Gradients do not pile up over several steps; each step takes the next batch."""
    _expect_training(answer, cases, batches=4, steps=4)


@training.check(points=0.5, hidden=True)
def batches_begin_again(answer: Answer, cases: Cases) -> None:
    """When the batches run out, they begin again."""
    _expect_training(answer, cases, batches=2, steps=5)


@training.check(points=0.5, hidden=True)
def rate_and_schedule(answer: Answer, cases: Cases) -> None:
    """The learning rate is heeded, and the schedule multiplies it."""
    _expect_training(answer, cases, batches=3, steps=3, rate=0.02)
    _expect_training(answer, cases, batches=3, steps=4, rate=0.2, schedule=_every_second)


def _every_second(step: int) -> float:
    return 1.0 if step % 2 else 0.25


@training.check(points=0.5, hidden=True)
def frozen_weights_stay(answer: Answer, cases: Cases) -> None:
    """Parameters that want no gradient stay as they are, and dropout works in training."""
    _expect_training(answer, cases, kind="with_frozen_part", batches=2, steps=3)
    model, loss = answer.fixture("with_dropout", 6, 2), answer.fixture("squared_error")
    x, y = cases.normal(40, 6), cases.normal(40, 2) + 5
    state = {"1.weight": torch.full((2, 6), 2.0), "1.bias": torch.zeros(2)}
    model.load(state)
    found = answer.run((model, [(x, y)], loss, 1), seed=cases.seed()).value
    still = (x @ state["1.weight"].T - y).square().mean().item()  # the loss without dropout
    expect(
        isinstance(found, list | tuple) and len(found) == 1 and abs(found[0] - still) > 1e-3,
        seen=_("The loss is that of a model whose dropout rests."),
        cause=_("The model was set to evaluation, where dropout does nothing."),
        next_step=_("Train in training mode: model.train()."),
    )


# -------------------------------------------------------------------------------- average_loss

averaging = Exercise(
    "average_loss",
    title=_("Find the bugs: a loss over padded batches"),
    difficulty=3,
    minutes=20,
    hints=(
        _("Two batches, one with three tokens and one with thirty: should they weigh the same?"),
        _(
            "The mean of means weighs a token in a short batch more. And a loss over padding asks "
            "the model to predict nothing."
        ),
        _("Sum of all losses that count, over all batches, divided by how many tokens count."),
    ),
    given="mean_of_means_with_padding",
)


def _average(batches: list[tuple[Tensor, Tensor]], padding: int) -> float:
    total, counted = 0.0, 0
    for logits, targets in batches:
        keep = targets != padding
        n = int(keep.sum())
        if n:
            total += float(_entropy(logits, targets, padding)) * n
            counted += n
    return total / max(counted, 1)


def _expect_average(answer: Answer, batches: list[tuple[Tensor, Tensor]], padding: int) -> None:
    found = answer(batches, padding)
    if isinstance(found, Tensor) and found.numel() == 1:
        found = found.item()
    right = _average(batches, padding)
    expect(
        isinstance(found, int | float) and abs(found - right) <= 2 * LOG_SUM,
        seen=_("The average is another number."),
        cause=_("Padding counts, or tokens of short batches weigh more than those of long ones."),
        next_step=_("Take one batch of 1 token and one of 3, and average the four losses by hand."),
    )


def _batch(cases: Cases, B: int, T: int, V: int, pads: int, padding: int) -> tuple[Tensor, Tensor]:
    targets = cases.integers(1, V, B, T)
    if pads:
        targets[:, -pads:] = padding
    return cases.normal(B, T, V, scale=2.0), targets


@averaging.check(points=1)
def batches_of_different_length(answer: Answer, cases: Cases) -> None:
    """Every token weighs the same, whichever batch it stands in."""
    V = cases.integer(4, 8)
    batches = [_batch(cases, 1, 2, V, 0, 0), _batch(cases, 3, 5, V, 0, 0)]
    _expect_average(answer, cases.shuffled(batches), 0)


@averaging.check(points=1)
def padding_does_not_count(answer: Answer, cases: Cases) -> None:
    """Padding does not count."""
    V = cases.integer(4, 8)
    _expect_average(answer, [_batch(cases, 2, 6, V, 3, 0)], 0)


@averaging.check(points=0)
def one_batch_without_padding(answer: Answer, cases: Cases) -> None:
    """One batch without padding gives its mean loss."""
    V = cases.integer(4, 8)
    _expect_average(answer, [_batch(cases, 3, 4, V, 0, 0)], 0)


@averaging.check(points=0.5, hidden=True)
def both_at_once(answer: Answer, cases: Cases) -> None:
    """Several batches, padded differently, with a padding id other than 0."""
    V = cases.integer(5, 8)
    batches = [
        _batch(cases, 2, 6, V - 1, 4, V - 1),
        _batch(cases, 3, 3, V - 1, 1, V - 1),
        _batch(cases, 1, 7, V - 1, 0, V - 1),
    ]
    batches = [
        (torch.cat((logits, cases.normal(*logits.shape[:2], 1)), -1), targets)
        for logits, targets in batches
    ]
    _expect_average(answer, batches, V - 1)


@averaging.check(points=0.5, hidden=True)
def a_batch_of_padding_alone(answer: Answer, cases: Cases) -> None:
    """A batch that is all padding changes nothing, and alone it gives 0."""
    V = cases.integer(4, 8)
    batches = [_batch(cases, 2, 3, V, 3, 0), _batch(cases, 2, 4, V, 1, 0)]
    _expect_average(answer, batches, 0)
    _expect_average(answer, batches[:1], 0)


# --------------------------------------------------------------------------------- lookup_test

tests = Exercise(
    "lookup_test",
    title=_("Write a test for an embedding"),
    difficulty=3,
    minutes=20,
    hints=(
        _("What must be true of row i of the table and the output for id i?"),
        _(
            "Look at the gradient as well: `weight.requires_grad_()`, then sum the output and call "
            "backward. Which rows of weight.grad may differ from zero, and how large are they?"
        ),
        _(
            "Ids with repeats and gaps, a random table; assert the rows, the shape, that table and "
            "ids are as before, and that a row used twice has twice the gradient."
        ),
    ),
)

Lookup = Callable[[Tensor, Tensor], Tensor]


def _right_index(ids: Tensor, weight: Tensor) -> Tensor:
    return weight[ids]


def _right_product(ids: Tensor, weight: Tensor) -> Tensor:
    return nn.functional.one_hot(ids, weight.shape[0]).to(weight.dtype) @ weight


def _right_library(ids: Tensor, weight: Tensor) -> Tensor:
    return nn.functional.embedding(ids, weight)


def _shifted(ids: Tensor, weight: Tensor) -> Tensor:
    return weight[ids - 1]


def _flattened(ids: Tensor, weight: Tensor) -> Tensor:
    return weight[ids.flatten()]


def _first_sequence(ids: Tensor, weight: Tensor) -> Tensor:
    return weight[ids[:1]].expand(*ids.shape, -1)


def _sorted(ids: Tensor, weight: Tensor) -> Tensor:
    return weight[ids.sort(-1).values]


def _detached(ids: Tensor, weight: Tensor) -> Tensor:
    return weight[ids].detach() + 0 * weight.sum()


def _once(ids: Tensor, weight: Tensor) -> Tensor:
    counts = torch.bincount(ids.flatten(), minlength=weight.shape[0])[ids].unsqueeze(-1)
    rows = weight[ids]
    return rows / counts + (rows - rows / counts).detach()


def _normalized(ids: Tensor, weight: Tensor) -> Tensor:
    return nn.functional.normalize(weight, dim=-1)[ids]


def _takes(ids: Tensor, weight: Tensor) -> None:
    if ids.dtype != torch.int64 or not weight.is_floating_point():
        raise TypeError


def _judged(answer: Answer, cases: Cases, wrong: dict[Lookup, tuple[str, str]]) -> None:
    """It accepts what is right, and rejects each of ``wrong``: by look-up, what is said else."""
    right = [_right_index, _right_product, _right_library]
    accepted, refused = verdicts(answer, cases, right=right, wrong=list(wrong), takes=_takes)
    expect(
        all(accepted),
        seen=_("Your test turns a right implementation away."),
        cause=_("It asks for something that the docstring does not promise."),
        next_step=_("Ask for rows and gradients only, and compare with torch.allclose."),
    )
    expect_refused(refused, wrong.values())


@tests.check(points=0.5)
def finds_wrong_rows(answer: Answer, cases: Cases) -> None:
    """It accepts three right look-ups and rejects one that gives the row before."""
    _judged(
        answer,
        cases,
        {
            _shifted: (
                _("Your test accepts a look-up that gives the row before."),
                _("Compare each vector with its row of the table."),
            ),
        },
    )


@tests.check(points=1)
def finds_what_batches_show(answer: Answer, cases: Cases) -> None:
    """It rejects look-ups that are wrong only for batches, or lose the order or shape."""
    faults: dict[Lookup, tuple[str, str]] = {
        _first_sequence: (
            _("Your test accepts a look-up that reads the first sequence of the batch only."),
            _("Use a batch of two sequences that differ."),
        ),
        _flattened: (
            _("Your test accepts a look-up that loses the shape of the ids."),
            _("Assert the shape."),
        ),
        _sorted: (
            _("Your test accepts a look-up that sorts the ids first."),
            _("Use ids that are not in order."),
        ),
    }
    _judged(answer, cases, faults)


@tests.check(points=0.5, hidden=True)
def finds_changed_vectors(answer: Answer, cases: Cases) -> None:
    """It rejects a look-up that changes the length of the vectors."""
    _judged(
        answer,
        cases,
        {
            _normalized: (
                _("Your test accepts a look-up that brings all vectors to length 1."),
                _("Use a random table, and compare the numbers."),
            ),
        },
    )


@tests.check(points=1, hidden=True)
def finds_wrong_gradients(answer: Answer, cases: Cases) -> None:
    """It rejects look-ups whose rows are right and whose gradients are not."""
    _judged(
        answer,
        cases,
        {
            _detached: (
                _("Your test accepts a look-up that no gradient passes through."),
                _("Make the table a leaf that wants a gradient and look at its grad."),
            ),
            _once: (
                _(
                    "Your test accepts a look-up in which a repeated row gets the gradient of one "
                    "use."
                ),
                _("Use an id twice; its row gets the sum of both gradients."),
            ),
        },
    )
