"""Every captioner: its steps, padding, odd images and captions, files, searches, wrong input, published sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import TINY, VOCABULARY, WIDTH, captions, images, make
from torch import Tensor

import vlplatform
from vlp_captioning.models import MODELS, Captioner, Images, Shape
from vlplatform.decoding import BeamSettings, Ensemble, beam_search
from vlplatform.errors import UserError
from vlplatform.settings import parse
from vlplatform.text import Vocabulary

KINDS = tuple(TINY)
MASKED = (7, 4, 1)


def given(model: Captioner, found: dict[str, Tensor]) -> Images:
    return Images.of(found).to(next(model.parameters()))


def part(found: dict[str, Tensor], rows: slice, columns: slice = slice(None)) -> dict[str, Tensor]:
    """Some images, and some of their regions."""
    regions = ("features", "mask", "boxes")
    return {key: value[rows, columns] if key in regions else value[rows] for key, value in found.items()}


def stepped(model: Captioner, seen: Images, tokens: Tensor) -> Tensor:
    """Log-probabilities word by word, r captions per image."""
    memory = model.encode(seen)
    state, share = model.start(memory), len(tokens) // len(memory)
    out = [model.step(tokens[::share, 0], state).repeat_interleave(share, 0)]
    state.expand(share)
    for t in range(1, tokens.shape[1]):
        out.append(model.step(tokens[:, t], state))
    return torch.stack(out, 1)


def test_all_kinds_are_here() -> None:
    assert set(TINY) == set(MODELS)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_steps_give_what_the_whole_pass_gives(kind: str) -> None:
    model, seen, tokens = make(kind), images(real=MASKED), captions(6, 9)
    whole = model.log_probs(seen, tokens)
    assert whole.shape == (6, 9, len(VOCABULARY))
    torch.testing.assert_close(stepped(model, given(model, seen), tokens), whole, atol=1e-9, rtol=0)
    torch.testing.assert_close(whole.exp().sum(-1), torch.ones(6, 9).double())


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_steps_follow_hypotheses(kind: str) -> None:
    """Rows change places within an image, and images leave."""
    model, seen, tokens = make(kind), images(real=MASKED), captions(6, 7)
    whole = model.log_probs(seen, tokens)
    state = model.start(model.encode(given(model, seen)))
    model.step(tokens[::2, 0], state)
    state.expand(2)
    model.step(tokens[:, 1], state)
    state.reorder(torch.tensor([1, 0, 2, 2, 5, 5]))
    rows = torch.tensor([1, 0, 2, 2, 5, 5])
    mixed = torch.cat((tokens[rows, :2], tokens[:, 2:]), 1)
    expected = model.log_probs(seen, mixed)
    torch.testing.assert_close(model.step(mixed[:, 2], state), expected[:, 2], atol=1e-9, rtol=0)
    state.reorder(torch.tensor([1, 0, 4, 5]))  # the second image leaves
    rows = torch.tensor([1, 0, 4, 5])
    mixed = torch.cat((mixed[rows, :3], tokens[rows, 3:]), 1)
    expected = model.log_probs(part(seen, slice(None, None, 2)), mixed)
    for t in range(3, 7):
        torch.testing.assert_close(model.step(mixed[:, t], state), expected[:, t], atol=1e-9, rtol=0)
    assert not torch.equal(whole[:, 3], expected[[0, 0, 1, 1, 2, 2], 3])


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind: str) -> None:
    model, seen, tokens = make(kind), images(real=MASKED), captions(6, 8)
    expected = model.log_probs(seen, tokens)
    odd = {**seen, "features": seen["features"].clone(), "boxes": seen["boxes"].clone()}
    odd["features"][~seen["mask"]] = torch.nan
    odd["boxes"][~seen["mask"]] = 0
    odd["attributes"] = seen["attributes"].masked_fill(~seen["attribute_mask"], 7)
    torch.testing.assert_close(model.log_probs(odd, tokens), expected, atol=1e-12, rtol=0)
    for i, count in enumerate(MASKED):  # alone and cropped: other images and padding change nothing
        alone = model.log_probs(part(seen, slice(i, i + 1), slice(count)), tokens[2 * i : 2 * i + 2])
        torch.testing.assert_close(alone, expected[2 * i : 2 * i + 2], atol=1e-10, rtol=0)
    behind = torch.cat((tokens, tokens.new_full((6, 3), VOCABULARY.pad)), 1)
    torch.testing.assert_close(model.log_probs(seen, behind)[:, :8], expected, atol=1e-12, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_words_see_no_later_ones(kind: str) -> None:
    model, seen, tokens = make(kind), images(2), captions(2, 8)
    later = tokens.clone()
    later[:, 5:] = (tokens[:, 5:] - 2) % (len(VOCABULARY) - 3) + 3
    found = model.log_probs(seen, tokens), model.log_probs(seen, later)
    torch.testing.assert_close(found[0][:, :5], found[1][:, :5], atol=1e-12, rtol=0)
    assert (found[0][:, 5:] - found[1][:, 5:]).abs().max() > 1e-6


def none_real() -> dict[str, Tensor]:
    return images(2, real=(0, 7))


def off_the_image() -> dict[str, Tensor]:
    seen = images(2)
    seen["boxes"][0, 0] = torch.tensor([-500.0, -400.0, -450.0, -300.0])
    seen["boxes"][0, 1] = torch.tensor([900.0, 20.0, 2000.0, 30.0])
    seen["boxes"][1, 2] = torch.tensor([10.0, 10.0, 10.0, 10.0])  # no area
    return seen


def equal_boxes() -> dict[str, Tensor]:
    seen = images(2)
    seen["boxes"][:] = seen["boxes"][:1, :1]
    return seen


ODD: dict[str, Callable[[], dict[str, Tensor]]] = {
    "one region": lambda: images(2, 1),
    "200 regions": lambda: images(2, 200, real=(200, 3)),
    "off the image": off_the_image,
    "equal boxes": equal_boxes,
    "no real region": none_real,
    "no boxes": lambda: {k: v for k, v in images(2, 9).items() if k not in ("boxes", "size")},
}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("kind", KINDS)
def test_odd_images_give_finite_captions_and_gradients(kind: str, case: str) -> None:
    model, seen, tokens = make(kind).train(), ODD[case](), captions(4, 4)
    ready = given(model, seen)
    hidden = model.decode(model.encode(ready), tokens, torch.tensor([4, 4, 4, 4]))
    loss = model.vocabulary_logits(hidden).log_softmax(-1)[..., 4].sum()
    loss.backward()
    assert loss.isfinite()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert grads
    assert [name for name, grad in grads.items() if not grad.isfinite().all()] == []
    found = model.eval().generate(seen, beam=2, max_length=5)
    assert len(found) == 2
    assert all(torch.tensor(each[0].score).isfinite() for each in found)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_captions_of_one_and_of_many_words(kind: str) -> None:
    model, seen = make(kind), images(1)
    for length in (1, 2, 60):
        tokens = captions(1, length)
        found = model.log_probs(seen, tokens)
        assert found.shape == (1, length, len(VOCABULARY))
        torch.testing.assert_close(stepped(model, given(model, seen), tokens), found, atol=1e-9, rtol=0)
    assert model.log_probs(seen, captions(1, 65)).isfinite().all()  # the begin symbol and max_length words


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_files_keep_a_model(kind: str, tmp_path: Path) -> None:
    model, seen, tokens = make(kind), images(real=MASKED), captions(3, 6)
    loaded = vlplatform.load(model.save(tmp_path / "saved"))
    assert type(loaded) is type(model)
    assert not loaded.training
    assert loaded.vocabulary == model.vocabulary
    assert loaded.settings() == model.settings()
    assert torch.equal(loaded.log_probs(seen, tokens), model.log_probs(seen, tokens))
    assert loaded.generate(seen) == model.generate(seen)


@torch.no_grad()
def test_models_of_different_kinds_decode_together() -> None:
    members = [make(kind, seed=i) for i, kind in enumerate(("eta", "xlan", "xtransformer", "updown", "m2"))]
    seen, tokens = images(real=MASKED), captions(3, 6)
    memories = [member.encode(given(member, seen)) for member in members]
    both = Ensemble(members)
    mean = torch.stack([member.log_probs(seen, tokens).exp() for member in members]).mean(0)
    state = both.start(memories)
    for t in range(6):
        torch.testing.assert_close(both.step(tokens[:, t], state).exp(), mean[:, t], atol=1e-12, rtol=0)
    settings = BeamSettings(max_length=8, returned=3)
    found = beam_search(both.step, both.start(memories), 3, settings, members[0].symbols)
    best = found.hypotheses()[0][0]
    read = torch.tensor([[VOCABULARY.bos, *best.tokens[:-1]]])
    alone = [m.log_probs(part(seen, slice(1)), read).exp() for m in members]
    told = torch.stack(alone).mean(0)[0].gather(1, torch.tensor(best.tokens)[:, None]).log()
    assert told.sum().item() == pytest.approx(best.score, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_whole_pass(kind: str) -> None:
    model, seen = make(kind), images(real=MASKED)
    found = model.generate(seen, beam=3, returned=3, max_length=7)
    assert [len(each) for each in found] == [3, 3, 3]
    for i, each in enumerate(found):
        assert each == sorted(each, key=lambda caption: -caption.score)
        for caption in each:
            read = torch.tensor([[VOCABULARY.bos, *caption.tokens[:-1]]])
            told = model.log_probs(part(seen, slice(i, i + 1)), read)[0]
            values = told.gather(1, torch.tensor(caption.tokens)[:, None])[:, 0]
            assert caption.log_probs == pytest.approx(values.tolist(), abs=1e-9)
            assert caption.score == pytest.approx(sum(caption.log_probs), abs=1e-9)
            assert caption.text == " ".join(VOCABULARY.decode(caption.tokens))


@pytest.mark.parametrize("kind", ["transformer", "xlan", "eta"])
def test_options_of_decoding(kind: str) -> None:
    model, seen = make(kind), images(real=MASKED)
    options: dict[str, Any] = {"max_length": 10, "min_length": 9}
    free = model.generate(seen, beam=3, **options)
    once = model.generate(seen, beam=3, no_repeat=1, **options)
    assert any(len(set(each[0].tokens)) < len(each[0].tokens) for each in free)
    assert all(len(set(each[0].tokens)) == len(each[0].tokens) for each in once)
    groups = model.generate(seen, beam=4, groups=2, returned=4, diversity=100.0, **options)
    for each in groups:  # as strong as this, no two groups begin alike
        assert len({caption.tokens[0] for caption in each}) > 1
    must = model.generate(seen, beam=4, required=[["circle"], [], ["red", "above"]], max_length=10)
    assert "circle" in must[0][0].text.split()
    assert {"red", "above"} <= set(must[2][0].text.split())
    torch.manual_seed(0)
    drawn = model.sample(seen, 4, max_length=6)
    torch.manual_seed(0)
    assert model.sample(seen, 4, max_length=6) == drawn
    assert len({caption.text for caption in drawn[0]}) > 1
    greedy = [each[0].tokens for each in model.generate(seen, beam=1, max_length=6)]
    assert [each[0].tokens for each in model.sample(seen, 1, max_length=6, top_k=1)] == greedy


def test_greedy_is_the_best_word_each_time() -> None:
    model, seen = make("transformer"), images(1)
    best = model.generate(seen, beam=1, max_length=6)[0][0].tokens
    read = torch.tensor([[VOCABULARY.bos, *best[:-1]]])
    told = model.log_probs(seen, read)[0]
    told[:, [VOCABULARY.pad, VOCABULARY.bos, VOCABULARY.unk or 0]] = -torch.inf
    assert told.argmax(-1).tolist() == best


WRONG: dict[str, tuple[Callable[[Captioner], Any], str]] = {
    "width": (lambda m: m.generate(torch.randn(1, 4, WIDTH + 1)), "7 wide; this model was made for 6"),
    "features of two axes": (lambda m: m.generate(torch.randn(4, WIDTH)), r"expected real numbers of shape \(B, N, F"),
    "whole-number features": (lambda m: m.generate(torch.ones(1, 4, WIDTH, dtype=torch.long)), "real numbers"),
    "list of features": (lambda m: m.generate({"features": [[1.0] * WIDTH]}), "features is a list; expected a tensor"),
    "key": (lambda m: m.generate({"feature": torch.randn(1, 4, WIDTH)}), "images has the key 'feature'"),
    "mask": (lambda m: m.generate({**images(1), "mask": torch.ones(1, 3)}), r"mask has shape \(1, 3\); expected"),
    "boxes": (lambda m: m.generate({**images(1), "boxes": torch.ones(1, 7, 3)}), "boxes"),
    "boxes of others": (lambda m: m.generate({**images(1), "boxes": torch.ones(1, 3, 4)}), "places of 3 features"),
    "grid": (lambda m: m.generate({"features": torch.randn(1, 4, WIDTH), "grid": (3, 2)}), "places of 6 features"),
    "tokens": (lambda m: m.log_probs(images(1), torch.tensor([[1, 99]])), "outside the vocabulary of 14 words"),
    "negative tokens": (lambda m: m.log_probs(images(1), torch.tensor([[1, -1]])), "outside the vocabulary"),
    "real tokens": (lambda m: m.log_probs(images(1), torch.ones(1, 2)), "expected whole numbers"),
    "rows of tokens": (lambda m: m.log_probs(images(2), captions(3, 2)), r"\(r · 2, T\)"),
    "long tokens": (lambda m: m.log_probs(images(1), captions(1, 66)), "66 words does not fit"),
    "beam": (lambda m: m.generate(images(1), beam=0), "beam=0 must be at least 1"),
    "returned": (lambda m: m.generate(images(1), returned=4), "returned=4 must be from 1 to beam=3"),
    "option": (lambda m: m.generate(images(1), bean=3), "bean"),
    "groups": (lambda m: m.generate(images(1), beam=3, groups=2), "groups"),
    "required for others": (lambda m: m.generate(images(2), required=[["red"]]), "given for 1 items; expected 2"),
    "unknown required": (lambda m: m.generate(images(1), required=[["zebra"]]), "'zebra' is required, and"),
    "no_repeat": (lambda m: m.generate(images(1), no_repeat=-1), "no_repeat=-1 must not be negative"),
    "length": (lambda m: m.generate(images(1), max_length=66), "max_length=66 is beyond this model's 65"),
    "samples": (lambda m: m.sample(images(1), 0), "samples=0"),
    "temperature": (lambda m: m.sample(images(1), temperature=0.0), "temperature=0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_told_in_a_sentence(case: str) -> None:
    call, words = WRONG[case]
    with pytest.raises(UserError, match=words) as told:
        call(make("transformer"))
    assert "\n" not in str(told.value)
    assert str(told.value).endswith(".")


ATTRIBUTES: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"attributes": None, "attribute_mask": None}, "attributes"),
    "beyond the vocabulary": ({"attributes": torch.full((1, 2), 99), "attribute_mask": None}, "attributes"),
    "of others": ({"attributes": torch.ones(2, 2, dtype=torch.long), "attribute_mask": None}, "attributes"),
    "mask of others": ({"attribute_mask": torch.ones(1, 3, dtype=torch.bool)}, "attribute_mask"),
}


@pytest.mark.parametrize("case", ATTRIBUTES)
def test_wrong_attributes_are_told_in_a_sentence(case: str) -> None:
    changes, words = ATTRIBUTES[case]
    seen = {key: value for key, value in {**images(1), **changes}.items() if value is not None}
    with pytest.raises(UserError, match=words):
        make("eta").generate(seen)


BAD_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "no slots": ("m2", {"slots": -1}),
    "m2 heads": ("m2", {"heads": 3}),
    "m2 layers": ("m2", {"encoder_layers": 0}),
    "m2 dropout": ("m2", {"dropout": 1.0}),
    "xlan heads": ("xlan", {"heads": 3}),
    "xlan layers": ("xlan", {"encoder_layers": -1}),
    "xlan width": ("xlan", {"attention_dim": 0}),
    "xlan attention": ("xlan", {"decoder_attn": "dot"}),
    "xlan dropout": ("xlan", {"output_dropout": -0.1}),
    "xtransformer heads": ("xtransformer", {"heads": 0}),
    "xtransformer layers": ("xtransformer", {"decoder_layers": 0}),
    "xtransformer dropout": ("xtransformer", {"update_dropout": 2.0}),
    "eta layers": ("eta", {"decoder_layers": 0}),
    "eta dropout": ("eta", {"dropout": -1.0}),
    "updown width": ("updown", {"attention_dim": 0}),
    "updown dropout": ("updown", {"dropout": 1.5}),
    "transformer heads": ("transformer", {"heads": 3}),
    "transformer dropout": ("transformer", {"dropout": -1.0}),
    "dim": ("transformer", {"dim": 0}),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_bad_settings_are_told(case: str) -> None:
    kind, changes = BAD_SETTINGS[case]
    with pytest.raises((UserError, ValueError), match=next(iter(changes))):
        make(kind, **changes)


def test_no_image_no_caption() -> None:
    assert make("transformer").generate(torch.zeros(0, 4, WIDTH)) == []
    assert make("xlan").sample(torch.zeros(0, 4, WIDTH)) == []


@torch.no_grad()
def test_rows_of_zeros_are_padding() -> None:
    model, seen = make("transformer"), images(real=MASKED)
    features = seen["features"].masked_fill(~seen["mask"][..., None], 0)
    tokens = captions(3, 5)
    torch.testing.assert_close(
        model.log_probs(features, tokens), model.log_probs({"features": features, "mask": seen["mask"]}, tokens)
    )


@torch.no_grad()
def test_one_symbol_for_padding_begin_and_end() -> None:
    """As in X-LAN's vocabulary: whole and stepwise passes agree for every kind that reads its numbers."""
    words = Vocabulary((".", *(f"w{i}" for i in range(8))), pad=0, bos=0, eos=0, unk=None)
    tokens = torch.randint(1, 9, (2, 5))
    tokens[:, 0] = 0
    seen = {key: value for key, value in images(2).items() if not key.startswith("attribute")}
    for kind in KINDS:
        if kind == "eta":
            continue
        model = make(kind, vocabulary=words)
        whole = model.log_probs(seen, tokens)
        torch.testing.assert_close(stepped(model, given(model, seen), tokens), whole, atol=1e-9, rtol=0)


def count(kind: str, words: int, attn: dict[str, Any] | None = None, **model: Any) -> int:
    """Parameters of a whole captioner for features of width 2048, built without memory."""
    made = MODELS[kind]
    vocabulary = Vocabulary(tuple(f"w{i}" for i in range(words)))
    with torch.device("meta"):
        built = made(vocabulary, Shape(2048), attn or {"name": made.default_attn}, parse(made.Settings, model, "model"))
    return sum(parameter.numel() for parameter in built.parameters())


@pytest.mark.parametrize(("layers", "published"), [(1, 18_129_679), (2, 25_486_095), (4, 40_198_927), (6, 54_911_759)])
def test_sizes_of_san(layers: int, published: int) -> None:
    """NG-SAN, table 1; the 9 487 words are all that input and output have, special symbols included."""
    assert count("transformer", 9_487, encoder_layers=layers, decoder_layers=layers) == published


@pytest.mark.parametrize(
    ("kind", "words", "millions", "attn"),
    [
        ("mdsan", 10_201, 33.57, {"name": "mdsa", "branches": 1}),
        ("mdsan", 10_201, 36.7, {"name": "mdsa", "branches": 2}),
        ("mdsan", 10_201, 39.88, None),
        ("mdsan", 10_201, 43.0, {"name": "mdsa", "branches": 4}),
        ("xlan", 9_488, 75.19, None),
        ("xtransformer", 9_488, 137.52, None),
    ],
)
def test_published_sizes(kind: str, words: int, millions: float, attn: dict[str, Any] | None) -> None:
    """MD-SAN, table I; X-LAN and X-Transformer as counted in the authors' code."""
    digits = len(str(millions).partition(".")[2].rstrip("0")) or 1
    assert round(count(kind, words, attn) / 1e6, digits) == millions


def test_size_of_the_baseline_of_mdsan() -> None:
    """MD-SAN, table I: 33.6 M; the original Transformer of three and three layers, output without bias."""
    layers: dict[str, Any] = {"encoder_layers": 3, "decoder_layers": 3, "output_bias": False}
    assert count("transformer", 10_201, **layers) == 33_564_160


def test_size_of_geometry_in_ngsan() -> None:
    """What four layers of geometry add to SAN: NG-SAN, table 1, prints 40.2 and 41.5 M and no more."""
    assert count("ngsan", 9_487) - count("transformer", 9_487) == 4 * 262_976
