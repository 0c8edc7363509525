"""The translator: shapes, padding, causality, cache, presets, attention on either side, searches, unknown words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from vlp_translation.models import PRESETS, Memory, TransformerSettings, Translator, drawn, translate
from vlp_translation.models.attentions import BOTH_SIDES, kernels, try_out
from vlp_translation.texts import Side, Texts
from vlp_translation.texts.dictionary import of_words
from vlp_translation.texts.whole import WholeWords
from vlp_translation.texts.wording import Wording
from vlplatform.errors import UserError
from vlplatform.losses import smoothed_cross_entropy

PAD, EOS, UNK = 1, 2, 3
SOURCE, TARGET = ("ein", "hund", "zwei", "katzen", "rot", "und"), ("a", "dog", "two", "cats", "red", "and", "the")
EVERY = ("sa", "nsa", "rel_pos", "acf1d", "bilateral", "dynamic_conv", "light_conv", "bilateral+rel_pos")
BOTH = tuple(name for name in EVERY if name not in ("nsa", "bilateral+rel_pos"))


def texts(source: tuple[str, ...] = SOURCE, target: tuple[str, ...] = TARGET) -> Texts:
    sides = ((code, words) for code, words in (("de", source), ("en", target)))
    return Texts(*(Side(Wording(code, moses=False), WholeWords(), of_words(words, "words")) for code, words in sides))


def make(attn: str | dict[str, Any] = "sa", *, seed: int = 0, known: Texts | None = None, **model: Any) -> Translator:
    """A small translator with every parameter drawn, biases too, in double precision and evaluation mode."""
    torch.manual_seed(seed)
    chosen = {"name": attn} if isinstance(attn, str) else attn
    sizes = {"dim": 16, "heads": 2, "hidden": 24, "encoder_layers": 2, "decoder_layers": 2}
    built = Translator(known or texts(), chosen, TransformerSettings(**{**sizes, **model})).double().eval()
    for parameter in built.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return built


def rows(words: int, *lengths: int, seed: int = 5) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, words + 4, (n,), generator=generator).tolist() for n in lengths]


def padded(sentences: list[list[int]], width: int = 0, *, left: bool = False) -> Tensor:
    width = max(width, *map(len, sentences))
    return torch.tensor([([PAD] * (width - len(s)) + s) if left else s + [PAD] * (width - len(s)) for s in sentences])


def source(*lengths: int) -> list[list[int]]:
    return [[*row, EOS] for row in rows(len(SOURCE), *lengths)]


def target(*lengths: int) -> list[list[int]]:
    return [[EOS, *row] for row in rows(len(TARGET), *lengths, seed=6)]


@pytest.mark.parametrize("attn", EVERY)
@pytest.mark.parametrize("order", ["post", "pre"])
def test_padding_on_either_side_changes_nothing(attn: str, order: str) -> None:
    model, read, write = make(attn, order=order), source(3, 7, 1), target(4, 2, 5)
    alone = [model.log_probs(torch.tensor([r]), torch.tensor([w]))[0] for r, w in zip(read, write)]
    for left in (False, True):
        for width in (0, 11):
            found = model.log_probs(padded(read, width, left=left), padded(write, width))
            assert found.shape == (3, width or 6, len(TARGET) + 4)
            for one, row in zip(alone, found):
                torch.testing.assert_close(row[: len(one)], one, atol=1e-10, rtol=0)


@pytest.mark.parametrize("attn", EVERY)
def test_no_word_sees_a_later_one(attn: str) -> None:
    model, read = make(attn), padded(source(5))
    first, second = target(7)[0], target(7)[0]
    second[5] = 4 + (second[5] - 3) % len(TARGET)
    assert first != second
    before, after = (model.log_probs(read, torch.tensor([tokens]))[0] for tokens in (first, second))
    torch.testing.assert_close(before[:5], after[:5], atol=1e-12, rtol=0)
    assert (before[5] - after[5]).abs().max() > 1e-6


@pytest.mark.parametrize("attn", EVERY)
@pytest.mark.parametrize("order", ["post", "pre"])
def test_a_cache_gives_what_the_whole_sentence_gives(attn: str, order: str) -> None:
    model, read, tokens = make(attn, order=order), padded(source(6, 3), left=True), padded(target(8, 8))
    with torch.no_grad():
        state = model.start(model.encode(read).lean())
        stepwise = torch.stack([model.step(tokens[:, t], state) for t in range(tokens.shape[1])], 1)
    torch.testing.assert_close(stepwise, model.log_probs(read, tokens), atol=1e-10, rtol=0)


@pytest.mark.parametrize("attn", EVERY)
def test_every_attention_learns_and_its_beams_are_what_it_says(attn: str) -> None:
    model = make(attn, dropout=0.1, attention_dropout=0.1).train()
    read, write = padded(source(4, 6, 2)), padded(target(5, 3, 6))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses: list[float] = []
    for _ in range(4):
        hidden = model.decode(model.encode(read), write[:, :-1])
        real = write[:, 1:] != PAD
        loss, _ = smoothed_cross_entropy(model.vocabulary_logits(hidden[real]), write[:, 1:][real], 0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    used = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not used
    assert losses[-1] < losses[0]
    model.eval()
    for item, best in zip(
        source(4, 6, 2), model.generate(read, beam=4, returned=2, max_length_b=8, length_penalty=0.7)
    ):
        for translation in best:
            tokens = torch.tensor([[EOS, *translation.tokens[:-1]]])
            values = model.log_probs(torch.tensor([item]), tokens)[0].gather(
                1, torch.tensor(translation.tokens)[:, None]
            )
            assert translation.log_probs == pytest.approx(values[:, 0].tolist(), abs=1e-9)
            total = sum(translation.log_probs) / len(translation.tokens) ** 0.7
            assert translation.score == pytest.approx(total, abs=1e-9)


def test_several_translations_of_a_sentence_share_its_memory() -> None:
    model, read, write = make("bilateral"), padded(source(4, 6)), padded(target(5, 3, 6, 2))
    together = model.log_probs(read, write)
    alone = model.log_probs(read.repeat_interleave(2, 0), write)
    torch.testing.assert_close(together, alone, atol=1e-12, rtol=0)


# presets


def count(model: Translator) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def by_hand(dim: int, hidden: int, encoder: int, decoder: int) -> int:
    """Parameters without embeddings: attention, feed-forward and norms of each layer, with their biases."""
    attention, feed_forward, norm = 4 * (dim * dim + dim), 2 * dim * hidden + hidden + dim, 2 * dim
    return encoder * (attention + feed_forward + 2 * norm) + decoder * (2 * attention + feed_forward + 3 * norm)


def words(size: int) -> tuple[str, ...]:
    return tuple(f"w{i}" for i in range(size - 4))


@pytest.mark.parametrize("preset", ["tiny", "multi30k", "iwslt"])
def test_presets_have_the_parameters_of_their_sizes(preset: Any) -> None:
    sizes = PRESETS[preset]
    layers = sizes.encoder_layers, sizes.decoder_layers
    known = texts(words(50), words(40))
    with torch.device("meta"):
        for shares, vectors in (("decoder", 50 + 40), ("none", 50 + 2 * 40)):
            model = Translator(known, {"name": "sa"}, TransformerSettings(preset=preset, share_embeddings=shares))
            assert count(model) == by_hand(sizes.dim, sizes.hidden, *layers) + vectors * sizes.dim


def test_published_parameter_counts() -> None:
    with torch.device("meta"):
        iwslt = texts(words(8848), words(6632))  # IWSLT14 De–En, 10 k merges: fairseq's log has 39 469 056
        model = Translator(iwslt, {"name": "sa"}, TransformerSettings(preset="iwslt", share_embeddings="decoder"))
        assert count(model) == 39_469_056
        joint = texts(words(9716), words(9716))  # Wu et al. 2021: 2.6 M
        model = Translator(joint, {"name": "sa"}, TransformerSettings(preset="multi30k"))
        assert model.model_settings.share_embeddings == "all"
        assert round(count(model) / 1e6, 1) == 2.6
        large = texts(words(37000), words(37000))  # Vaswani et al. 2017, table 3: 213 M
        model = Translator(large, {"name": "sa"}, TransformerSettings(preset="big"))
        assert 210 <= count(model) / 1e6 <= 216


def test_settings_go_before_the_preset() -> None:
    settings = TransformerSettings(preset="tiny", heads=4, decoder_layers=3).resolved(True)
    assert (settings.dim, settings.hidden, settings.heads, settings.decoder_heads) == (64, 64, 4, 4)
    assert (settings.encoder_layers, settings.decoder_layers, settings.share_embeddings) == (2, 3, "all")
    assert TransformerSettings().resolved().resolved() == TransformerSettings().resolved()
    with pytest.raises(ValueError, match="heads=0 must be at least 1"):
        TransformerSettings(heads=0)


def test_how_it_begins() -> None:
    torch.manual_seed(0)
    model = Translator(texts(words(3000), words(3000)), {"name": "sa"}, TransformerSettings(preset="base"))
    for vectors in (model.source.tokens.weight.detach(), model.output.weight.detach()):
        assert not vectors[PAD].any()
        assert float(vectors[4:].std()) == pytest.approx(512**-0.5, rel=0.01)
    attention: Any = model.encoder.layers[0].attention
    for projection, gain in ((attention.query, 2**-0.5), (attention.value, 2**-0.5), (attention.output, 1)):
        bound = gain * (6 / 1024) ** 0.5
        assert float(projection.weight.detach().abs().max()) == pytest.approx(bound, rel=0.01)
        assert not projection.bias.any()


# which attention stands where


def test_defaults_of_windows_and_kernels() -> None:
    model = make("bilateral")
    assert model.attn == {"name": "bilateral", "window": 21}
    assert model.model_settings.decoder_attn == {"name": "bilateral", "window": 11}
    model = make({"name": "bilateral", "window": 31, "padding": "min"})
    assert model.model_settings.decoder_attn == {"name": "bilateral", "window": 16, "padding": "min"}  # table 3.7
    model = make("dynamic_conv", encoder_layers=7, decoder_layers=6)
    kernel = [layer.attention.kernel for layer in model.encoder.layers]
    assert kernel == [3, 7, 15, 31, 31, 31, 31]
    assert [layer.attention.kernel for layer in model.decoder.layers] == [3, 7, 15, 31, 31, 31]
    assert [kernels(n) for n in range(5)] == [[], [31], [15, 31], [7, 15, 31], [3, 7, 15, 31]]
    model = make({"name": "dynamic_conv", "kernel": 5, "glu": False})
    assert all(layer.attention.kernel == 5 for layer in (*model.encoder.layers, *model.decoder.layers))
    assert make("nsa").model_settings.decoder_attn == {"name": "sa"}
    assert set(BOTH) <= BOTH_SIDES


def test_layers_may_differ_and_come_back_from_their_settings() -> None:
    mixed = ["sa", {"name": "bilateral", "window": 5}]
    model = make("sa", encoder_attn=mixed, decoder_attn=["dynamic_conv", "rel_pos"])
    values = model.settings()
    again = Translator(
        Texts.from_dict(values["texts"]),
        values["attn"],
        TransformerSettings(**{name: value for name, value in values["model"].items() if name != "name"}),
    )
    again.double().eval().load_state_dict(model.state_dict())
    read, write = padded(source(4, 6)), padded(target(5, 3))
    assert torch.equal(again.log_probs(read, write), model.log_probs(read, write))
    assert again.settings() == values


@pytest.mark.parametrize(
    ("attn", "model", "told"),
    [
        (
            "sa",
            {"decoder_attn": "nsa"},
            r"layer 0 of the decoder cannot stand there \(.*cannot be causal.*set model.dec",
        ),
        ("dsa", {}, r"layer 0 of the encoder cannot stand there \(.*geometry.*set attn to one of acf1d, bilateral_sa"),
        ("swin_window", {}, "of the encoder cannot stand there"),
        (
            "nsa+conv",
            {},
            r"encoder cannot stand there \(attn=conv fits the local socket, not .*; set attn to one of acf1d,",
        ),
        (
            "sa",
            {"decoder_attn": ["sa", "eta"]},
            r"layer 1 of the decoder cannot stand there \(attn=eta fits the fusion",
        ),
        ("sa", {"cross_attn": "conv"}, r"the source, cannot stand there \(attn=conv fits the local socket"),
        (
            "sa",
            {"cross_attn": "dynamic_conv"},
            r"for the source, cannot stand there \(.*set model.cross_attn to one of",
        ),
        ("sa", {"cross_attn": "nsa"}, "for the source, cannot stand there"),
        ({"name": "acf1d", "rate": 2}, {}, "layer 0 of the decoder cannot stand there"),
        ("sa", {"decoder_attn": ["sa"]}, "model.decoder_attn has 1 specs for 2 layers"),
        ("sa", {"encoder_attn": [{"window": 3}, "sa"]}, "names no mechanism"),
        ("bilatral", {}, "attn=bilatral is not a known mechanism"),
        ("sa", {"heads": 3}, "dim=16 is not divisible by heads=3"),
    ],
)
def test_what_does_not_fit_is_told_in_one_sentence(attn: Any, model: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        make(attn, **model)
    sizes = {"dim": 16, "heads": 2, "hidden": 24, "encoder_layers": 2, "decoder_layers": 2}
    state = torch.get_rng_state()
    with pytest.raises(UserError, match=told):
        try_out({"name": attn} if isinstance(attn, str) else attn, TransformerSettings(**{**sizes, **model}))
    assert torch.equal(state, torch.get_rng_state())


def test_what_stands_in_the_decoder_is_listed() -> None:
    with pytest.raises(UserError) as error:
        make("sa", decoder_attn="nsa")
    listed = str(error.value).rpartition("one of ")[2].rstrip(".").split(", ")
    assert {"sa", "acf1d", "bilateral_sa", "rel_pos", "dynamic_conv", "light_conv"} <= set(listed)
    assert not {"nsa", "dsa", "gsa", "acf2d"} & set(listed)


def test_one_vocabulary_is_needed_to_share_it() -> None:
    with pytest.raises(UserError, match="needs one vocabulary for both languages, and these have 10 and 11 words"):
        make("sa", share_embeddings="all")
    model = make("sa", known=texts(TARGET, TARGET))
    assert model.source.tokens.weight is model.target.tokens.weight is model.output.weight
    assert make("sa").model_settings.share_embeddings == "decoder"


# positions


def test_positions_of_any_length_and_of_learnt_ones() -> None:
    long = padded(source(1500))
    assert make("sa").log_probs(long, padded(target(1200))).isfinite().all()
    model = make("sa", positions="learned", max_length=6)
    assert model.log_probs(padded(source(5)), padded(target(5))).isfinite().all()
    with pytest.raises(UserError, match="a sentence of 7 tokens does not fit this model's 6 positions"):
        model.log_probs(padded(source(6)), padded(target(5)))
    [[translation]] = model.generate(padded(source(5)), beam=1, min_length=4, unk_penalty=float("inf"))
    assert len(translation.tokens) <= 6


@pytest.mark.parametrize("positions", ["sinusoid", "learned", "none"])
@pytest.mark.parametrize("options", [{}, {"embedding_norm": True, "scale_embeddings": False}])
def test_embeddings_mind_no_padding(positions: str, options: dict[str, bool]) -> None:
    model, read, write = make("dynamic_conv", positions=positions, **options), source(3, 6), target(4, 4)
    alone = model.log_probs(torch.tensor(read[:1]), torch.tensor(write[:1]))
    for left in (False, True):
        together = model.log_probs(padded(read, left=left), padded(write))
        torch.testing.assert_close(together[:1], alone, atol=1e-10, rtol=0)


def test_sines_stay_exact_through_other_precisions() -> None:
    model = make("sa")
    places = model.source.places(torch.tensor([[4, 5, 6]]))
    model.half().double()
    assert torch.equal(model.source.places(torch.tensor([[4, 5, 6]])), places)


# searches


def test_texts_and_numbers_are_read_alike() -> None:
    model = make("bilateral")
    lines = ["ein hund", "zwei katzen und ein hund", ""]
    numbers = padded([[*model.texts.source.encode(line), EOS] for line in lines], left=True)
    for first, second in zip(model.generate(lines, max_length_b=7), model.generate(numbers, max_length_b=7)):
        assert first[0].tokens == second[0].tokens
        assert first[0].score == pytest.approx(second[0].score, abs=1e-10)
        assert first[0].text == " ".join(first[0].words) == " ".join(model.texts.target.decode(first[0].tokens))
    assert model.generate([]) == []


def test_length_follows_the_longest_source() -> None:
    model = make("sa")
    with torch.no_grad():
        model.output.weight[EOS] = model.output.weight[EOS] - 50  # it never ends of itself
    found = model.generate(padded(source(9, 2)), beam=2, max_length_a=0.5, max_length_b=1)
    assert {len(item[0].tokens) for item in found} == {int(0.5 * 10 + 1) + 1}


def test_groups_no_repeat_and_sampling() -> None:
    model, read = make("sa"), padded(source(4, 2))
    for item in model.generate(read, beam=4, groups=2, returned=4, max_length_b=6, diversity=2.0):
        assert len({tuple(t.tokens) for t in item}) == len(item)
    for item in model.generate(read, beam=3, no_repeat=1, max_length_b=5, min_length=5):
        assert len(set(item[0].tokens)) == len(item[0].tokens)
    torch.manual_seed(0)
    drawn = model.sample(read, 3, max_length_b=5, top_k=4)
    assert [len(item) for item in drawn] == [3, 3]
    for item, sentence in zip(drawn, source(4, 2)):
        for t in item:
            values = model.log_probs(torch.tensor([sentence]), torch.tensor([[EOS, *t.tokens[:-1]]]))[0]
            assert t.log_probs == pytest.approx(
                values.gather(1, torch.tensor(t.tokens)[:, None])[:, 0].tolist(), abs=1e-9
            )
            assert PAD not in t.tokens


def test_what_is_drawn_ends_and_follows_from_seed_and_sentence() -> None:
    model, read = make("sa"), padded(source(4, 2))
    with torch.no_grad():
        model.output.weight[EOS] = model.output.weight[EOS] - 50  # it never ends of itself
    for item, sentence in zip(model.sample(read, 3, max_length_b=2, seed=1), source(4, 2)):
        assert [t.score for t in item] == sorted((t.score for t in item), reverse=True)
        for t in item:
            assert len(t.tokens) == 3
            assert t.tokens[-1] == EOS
            values = model.log_probs(torch.tensor([sentence]), torch.tensor([[EOS, *t.tokens[:-1]]]))[0]
            assert t.log_probs[-1] == pytest.approx(float(values[-1, EOS]), abs=1e-9)
            assert t.score == pytest.approx(sum(t.log_probs), abs=1e-9)
    model = make("sa")
    together = model.sample(read, 3, max_length_a=1, max_length_b=5, seed=1)
    alone = model.sample(padded(source(4, 2)[1:]), 3, max_length_a=1, max_length_b=7, seed=1)
    assert [t.tokens for t in together[1]] == [t.tokens for t in alone[0]]
    assert model.sample(read, 3, max_length_b=5, seed=2) != model.sample(read, 3, max_length_b=5, seed=1)
    assert all(len(t.tokens) > 1 for item in model.sample(read, 50, max_length_b=2) for t in item), "a word at least"
    for item in model.sample(read, 5, max_length_b=5, no_repeat=1):
        assert all(len({*t.tokens}) == len(t.tokens) for t in item)


def test_an_ensemble_draws_from_the_mean_of_the_probabilities() -> None:
    models, read = [make("sa"), make("dynamic_conv", seed=1, dim=8)], padded(source(4))
    for t in drawn(models, read, 4, max_length_b=4, seed=0)[0]:
        tokens = torch.tensor([[EOS, *t.tokens[:-1]]])
        mean = torch.stack([model.log_probs(read, tokens).exp() for model in models]).mean(0)[0]
        expected = mean.gather(1, torch.tensor(t.tokens)[:, None])[:, 0].log()
        assert t.log_probs == pytest.approx(expected.tolist(), abs=1e-9)
    with pytest.raises(UserError, match="give at least one"):
        drawn([], read, 4)


def test_an_ensemble_follows_the_mean_of_the_probabilities() -> None:
    models, read = [make("sa"), make("dynamic_conv", seed=1, dim=8, encoder_layers=1)], padded(source(4, 2), left=True)
    found = translate(models, read, beam=1, max_length_b=6)
    for item, sentence in zip(found, source(4, 2)):
        tokens = torch.tensor([[EOS, *item[0].tokens[:-1]]])
        mean = torch.stack([m.log_probs(torch.tensor([sentence]), tokens).exp() for m in models]).mean(0)[0]
        mean[:, PAD] = 0
        mean[0, EOS] = 0  # a word at least
        assert mean.argmax(-1).tolist()[: len(item[0].tokens) - 1] == item[0].tokens[:-1]
    alone = translate(models[:1], read, beam=3, max_length_b=6)
    assert alone == models[0].generate(read, beam=3, max_length_b=6)
    other = make("sa", known=texts(SOURCE, ("other",)))
    with pytest.raises(UserError, match="member 2 of the ensemble has other target words"):
        translate([models[0], other], read)
    other = make("sa", known=texts(("other",), TARGET))
    with pytest.raises(UserError, match="member 2 of the ensemble has other source words than the first: give texts"):
        translate([models[0], other], read)
    assert translate([models[0], other], ["ein hund"], beam=2, max_length_b=3)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda m: m.generate("ein hund"), "source must be a list of texts"),
        (lambda m: m.generate(torch.ones(2, 3)), r"source has shape \(2, 3\) and type torch.float32"),
        (lambda m: m.generate(torch.tensor([[99]])), "numbers outside the vocabulary of 10 words"),
        (lambda m: m.generate(torch.tensor([[4, 2], [1, 1]])), "sentence 1 of the source is padding alone"),
        (lambda m: m.generate(["ein"], beam=0), "beam=0 must be at least 1"),
        (lambda m: m.generate(["ein"], beams=2), "unexpected keyword argument 'beams'"),
        (lambda m: m.generate(["ein"], max_length_a=-1), "must not be negative"),
        (lambda m: m.generate(["ein"], no_repeat=-1), "no_repeat=-1 must not be negative"),
        (lambda m: m.log_probs(torch.tensor([[4, 2]] * 2), torch.tensor([[2]] * 3)), r"expected whole .* \(r · 2, T\)"),
        (lambda m: m.log_probs(torch.tensor([[4, 2]]), torch.tensor([[2, 99]])), "outside the vocabulary of 11 words"),
    ],
)
def test_bad_input_is_told(given: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        given(make("sa"))


# unknown words


def sees(model: Translator, read: Tensor, tokens: list[int]) -> list[int]:
    """The place that each written token looked at most, by a separate pass through the last layer's attention."""
    kept: list[Tensor] = []
    last: Any = model.decoder.layers[-1].cross

    def keep(module: Any, args: Any, kwargs: Any) -> None:
        kept.append(module.attention_weights(*args, **kwargs))

    hook = last.register_forward_pre_hook(keep, with_kwargs=True)
    model.log_probs(read, torch.tensor([[EOS, *tokens[:-1]]]))
    hook.remove()
    return kept[0][0].mean(0)[:, : read.shape[1] - 1].argmax(-1).tolist()


def test_unknown_words_become_what_the_model_looked_at() -> None:
    model = make("sa")
    with torch.no_grad():
        model.output.weight[UNK] = 1.1 * model.output.weight[10]  # it often writes the unknown word
    lines = ["ein hund", "zwei blaue katzen und hund"]  # blaue is unknown to the source's vocabulary
    plain = model.generate(lines, beam=3, returned=3, max_length_b=6)
    replaced = model.generate(lines, beam=3, returned=3, max_length_b=6, replace_unknown=True)
    translated = model.generate(lines, max_length_b=6, beam=3, replace_unknown=True, dictionary={"blaue": "blue"})
    seen: set[str] = set()
    for line, before, after in zip(lines, plain, replaced):
        read = torch.tensor([[*model.texts.source.encode(line), EOS]])
        for one, other in zip(before, after):
            assert one.tokens == other.tokens
            places = sees(model, read, one.tokens)
            expected = [line.split()[p] if n == UNK else w for n, w, p in zip(one.tokens, one.words, places)]
            assert other.words == expected
            seen |= set(other.words) - set(one.words)
    assert seen
    assert "<unk>" not in " ".join(t.text for item in replaced for t in item)
    for one, other in zip(replaced, translated):
        assert other[0].words == ["blue" if word == "blaue" else word for word in one[0].words]
    numbers = padded([[*model.texts.source.encode(line), EOS] for line in lines], left=True)
    for one, other in zip(replaced, model.generate(numbers, beam=3, max_length_b=6, replace_unknown=True)):
        assert other[0].words == ["<unk>" if word == "blaue" else word for word in one[0].words]


def test_memory_is_lean_where_nothing_is_masked() -> None:
    model = make("sa")
    assert model.encode(padded(source(3, 3))).lean().mask is None
    memory = model.encode(padded(source(3, 1))).lean()
    assert memory.mask is not None
    again = Memory.of(memory.tensors())
    assert torch.equal(again.tokens, memory.tokens)
