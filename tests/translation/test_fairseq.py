"""fairseq's models through ``vlp convert``: golden vectors, other sizes, old names, refusals."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import beam
from reference.fairseq import Sizes, Slow, official
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import vlplatform
from vlp_translation.convert import FairseqSettings, fairseq
from vlp_translation.models import Translator
from vlplatform.cli.main import main
from vlplatform.errors import UserError
from vlplatform.hub.importer import Checkpoint, read_checkpoint
from vlplatform.layers import FeedForward
from vlplatform.losses import smoothed_cross_entropy

PAD, EOS = 1, 2
SIZES = (
    Sizes(),
    Sizes(pre=True, shares="decoder"),
    Sizes(words=(13, 13), shares="all", learned=20, norm=True),
    Sizes("dynamic"),
    Sizes("dynamic", glu=False, pre=True, layers=(3, 1), kernels=((3, 7, 15), (4,))),
    Sizes("light", heads=(2, 4)),
    Sizes("light", heads=(1, 1), glu=False, kernels=((5, 5), (5, 5, 5)), dim=10, hidden=6),
)
NAMES = [f"{sizes.kind}-{i}" for i, sizes in enumerate(SIZES)]


def heads(sizes: Sizes) -> list[str]:
    return [f"encoder_heads={sizes.heads[0]}", f"decoder_heads={sizes.heads[1]}"]


def convert(folder: Path, *words: str, file: str = "official.safetensors") -> int:
    return main(["convert", "fairseq", str(folder / file), str(folder / "ours"), *words])


def loaded(weights: dict[str, Tensor], folder: Path, *words: str) -> Translator:
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "official.safetensors")
    assert convert(folder, *words) == 0
    model = vlplatform.load(folder / "ours")
    assert isinstance(model, Translator)
    return model


def direct(weights: dict[str, Tensor], **settings: Any) -> Translator:
    model = fairseq(Checkpoint(weights), FairseqSettings(**settings))
    assert isinstance(model, Translator)
    return model


def sentences(words: int, *lengths: int, seed: int = 3) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [[*torch.randint(4, words, (n,), generator=generator).tolist(), EOS] for n in lengths]


def padded(rows: list[list[int]], *, left: bool = False) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[PAD] * (width - len(r)) + r if left else r + [PAD] * (width - len(r)) for r in rows])


class SingleSoftmax(nn.Module):
    """Attention to the source with the softmax in single precision, as fairseq's decoder has it."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: Tensor, memory: Tensor, *, mask: Tensor, **_: Any) -> Tensor:
        heads = self.of._heads
        q, k, v = heads(self.of.query(x)), heads(self.of.key(memory)), heads(self.of.value(memory))
        logits = (q @ k.transpose(-2, -1) * self.of.scale).masked_fill(~mask[:, None, None], -torch.inf)
        return self.of.output((logits.softmax(-1, dtype=torch.float32).to(v) @ v).transpose(1, 2).flatten(2))


@pytest.mark.shared
@pytest.mark.parametrize("case", ["fairseq_transformer", "fairseq_transformer_prenorm", "fairseq_dynamicconv"])
def test_golden(case: str, shared: Path, tmp_path: Path) -> None:
    golden = shared / "reference" / "golden"
    tensors = load_file(golden / f"{case}.safetensors")
    model = loaded({name[2:]: t for name, t in tensors.items() if name.startswith("w.")}, tmp_path, "heads=4")
    read, target = tensors["prev_output_tokens"], tensors["target"]
    sides = (("src", "logits"), ("src_leftpad", "logits_leftpad"))
    for source, logits in sides:
        found = model.log_probs(tensors[source], read)
        assert found.dtype == torch.float64
        # fairseq's decoder looks at the source with a softmax in single precision, hence no less; see below
        torch.testing.assert_close(found, tensors[logits].log_softmax(-1), atol=1e-6, rtol=0)
    found = model.log_probs(tensors["src"], read)
    real = target != PAD
    loss, nll = smoothed_cross_entropy(found[real], target[real], 0.1)
    torch.testing.assert_close(nll, tensors["nll_sum"], atol=1e-5, rtol=0)
    torch.testing.assert_close(loss, tensors["loss_ls_0.1_sum"], atol=1e-5, rtol=0)

    search = json.loads((golden / f"{case}.json").read_text())["beam_search"]["hypotheses"]
    settings = {
        "b4_lp1.0": {},
        "b4_lp0.6": {"length_penalty": 0.6},
        "b4_nonorm": {"length_penalty": 0.0},
        "b4_lp1.3_min3_unk": {"length_penalty": 1.3, "min_length": 3, "unk_penalty": 0.5},
    }
    assert set(search) == set(settings)
    for name, given in settings.items():
        for source, _ in sides:
            every = model.generate(tensors[source], beam=4, returned=4, max_length_b=10, **given)
            for translations, theirs in zip(every, search[name], strict=True):
                for own, their in zip(translations, theirs, strict=True):
                    assert own.tokens == their["tokens"]
                    assert own.score == pytest.approx(their["score"], abs=2e-5)
                    assert own.log_probs == pytest.approx(their["positional_scores"], abs=2e-5)

    for layer in model.decoder.layers:
        layer.cross = SingleSoftmax(layer.cross)
    with torch.no_grad():
        for source, logits in sides:
            mask = (read != PAD) if case != "fairseq_dynamicconv" else None
            hidden = model.decode(model.encode(tensors[source]), read, mask)
            torch.testing.assert_close(model.vocabulary_logits(hidden), tensors[logits], atol=1e-9, rtol=0)


@pytest.mark.parametrize("sizes", SIZES, ids=NAMES)
def test_other_sizes_are_the_slow_model(sizes: Sizes, tmp_path: Path) -> None:
    weights = official(sizes)
    model, slow = loaded(weights, tmp_path, *heads(sizes)), Slow(sizes, weights)
    assert model.model_settings.share_embeddings == sizes.shares
    assert model.model_settings.order == ("pre" if sizes.pre else "post")
    source = sentences(sizes.words[0], 4, 1, 7)
    target = [[EOS, *row[:-1]] for row in sentences(sizes.words[1], 5, 2, 3)]
    for left in (False, True):
        found = model.log_probs(padded(source, left=left), padded(target))
        for i, (read, tokens) in enumerate(zip(source, target)):
            expected = slow.log_probs(read, tokens)
            # sines are computed in single precision, as fairseq's are; learnt positions have no such limit
            bar = 1e-9 if sizes.learned else 2e-6
            torch.testing.assert_close(found[i, : len(tokens)], expected, atol=bar, rtol=0)


@pytest.mark.parametrize("sizes", [SIZES[0], SIZES[3], SIZES[5]], ids=["sa", "dynamic", "light"])
def test_beams_are_those_of_the_slow_search(sizes: Sizes) -> None:
    weights = {name: 2 * tensor if "output_projection" in name else tensor for name, tensor in official(sizes).items()}
    slow = Slow(sizes, weights)
    model = direct(weights, encoder_heads=sizes.heads[0], decoder_heads=sizes.heads[1])
    source = sentences(sizes.words[0], 3, 6, 1)
    found = model.generate(
        padded(source, left=True),
        beam=3,
        returned=3,
        max_length_a=0.5,
        max_length_b=2,
        length_penalty=0.8,
        min_length=2,
    )
    for read, translations in zip(source, found):
        task = beam.Task(
            lambda tokens, read=read: slow.log_probs(read, [EOS, *tokens])[-1].tolist(),
            beam=3,
            length=int(0.5 * 7 + 2) + 1,  # the longest source has 7 tokens
            eos=EOS,
            alpha=0.8,
            min_length=2,
            forbid=(PAD,),
        )
        expected = beam.aside(task)
        assert [t.tokens for t in translations] == [h.tokens for h in expected]
        for translation, hypothesis in zip(translations, expected):
            assert translation.score == pytest.approx(hypothesis.score(0.8), abs=1e-5)


def old_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """As fairseq's checkpoints of 2018 have them."""
    old: dict[str, Tensor] = {}
    norms = {
        "encoder": ("self_attn_layer_norm", "final_layer_norm"),
        "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    }
    for name, tensor in weights.items():
        side, _, rest = name.partition(".")
        module, _, kind = rest.rpartition(".")
        leaf = module.rpartition(".")[2]
        if leaf in ("q_proj", "k_proj", "v_proj"):
            if leaf == "q_proj":
                parts = [weights[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
                old[f"{side}.{module.removesuffix('.q_proj')}.in_proj_{kind}"] = torch.cat(parts)
        elif leaf in norms[side] and module.startswith("layers"):
            old[f"{side}.{module.removesuffix(leaf)}layer_norms.{norms[side].index(leaf)}.{kind}"] = tensor
        elif name == "decoder.output_projection.weight":
            old["decoder.embed_out"] = tensor
        else:
            old[name] = tensor
    for side in ("encoder", "decoder"):
        old[f"{side}.version"] = torch.tensor([3.0])
        old[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
        old[f"{side}.embed_positions.weights"] = torch.zeros(5, 12)
    return old


def test_old_names() -> None:
    new = official(SIZES[0])
    old = old_names(new)
    assert "encoder.layers.0.self_attn.in_proj_weight" in old
    assert "decoder.layers.2.layer_norms.2.bias" in old
    first, second = (direct(w, encoder_heads=3, decoder_heads=2).state_dict() for w in (new, old))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_old_names_of_convolutions() -> None:
    new = official(SIZES[3])
    old = {
        name.replace("layer_norm1", "layer_norms.0").replace("layer_norm2", "layer_norms.1"): t
        for name, t in new.items()
    }
    first, second = (direct(w, encoder_heads=3, decoder_heads=2).state_dict() for w in (new, old))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_convolution_s_bias_counts_where_fairseq_adds_it() -> None:
    weights, source = official(SIZES[3]), torch.tensor([[4, 5, EOS]])
    bias = torch.randn(12, dtype=torch.float64)
    told = {"encoder_heads": 3, "decoder_heads": 2}
    plain = direct(weights, **told)
    unused = direct(weights | {"encoder.layers.0.conv.conv_bias": torch.full((1, 1, 12), torch.nan).double()}, **told)
    used = direct(weights | {"encoder.layers.0.conv.conv_bias": bias}, **told)
    read = torch.tensor([[EOS, 4]])
    assert torch.equal(plain.log_probs(source, read), unused.log_probs(source, read))
    moved = weights["encoder.layers.0.linear2.weight"] @ bias
    shift = used.state_dict()["encoder.layers.0.attention.output.bias"] - weights["encoder.layers.0.linear2.bias"]
    torch.testing.assert_close(shift, moved)


def test_embeddings_shared_with_the_output_need_no_projection() -> None:
    weights = official(SIZES[1])
    del weights["decoder.output_projection.weight"]
    model = direct(weights, encoder_heads=3, decoder_heads=2)
    assert model.output.weight is model.target.tokens.weight


@pytest.mark.parametrize("nested", [False, True])
def test_arguments_beside_the_weights(nested: bool, tmp_path: Path) -> None:
    flat = {
        "arch": "transformer",
        "encoder_attention_heads": 3,
        "decoder_attention_heads": 2,
        "dropout": 0.25,
        "activation_dropout": 0.05,
        "attention_dropout": 0.15,
        "activation_fn": "gelu",
        "no_scale_embedding": True,
        "encoder_normalize_before": False,
        "adaptive_softmax_cutoff": None,
    }
    groups = {name: value for name, value in flat.items() if not name.startswith(("encoder_", "decoder_"))}
    groups |= {"encoder": {"attention_heads": 3}, "decoder": {"attention_heads": 2}}
    beside = {"cfg": {"model": groups}} if nested else {"args": argparse.Namespace(**flat)}
    torch.save({**beside, "model": official(SIZES[0]), "extra_state": {"epoch": 3}}, tmp_path / "model.pt")
    assert convert(tmp_path, file="model.pt") == 0
    model = vlplatform.load(tmp_path / "ours")
    assert isinstance(model, Translator)
    settings = model.model_settings
    assert (settings.heads, settings.decoder_heads, settings.dropout) == (3, 2, 0.25)
    assert (settings.hidden_dropout, settings.attention_dropout) == (0.05, 0.15)
    assert (settings.activation, settings.scale_embeddings) == ("gelu", False)


@pytest.mark.parametrize("name", ["gelu_accurate", "gelu_fast"])
def test_the_gelu_by_a_hyperbolic_tangent(name: str) -> None:
    checkpoint = Checkpoint(official(SIZES[0]), {"activation_fn": name})
    model = fairseq(checkpoint, FairseqSettings(encoder_heads=3, decoder_heads=2))
    assert isinstance(model, Translator)
    layer = next(part for part in model.modules() if isinstance(part, FeedForward)).eval()
    x = torch.randn(3, 5, layer.first.in_features, dtype=layer.first.weight.dtype)
    hidden = layer.first(x)
    gelu = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
    torch.testing.assert_close(layer(x), layer.second(gelu))


def test_languages_that_only_the_task_of_a_checkpoint_names(tmp_path: Path) -> None:
    of_model = argparse.Namespace(encoder_attention_heads=3, decoder_attention_heads=2, max_target_positions=9)
    of_task = {"_name": "translation", "source_lang": "de", "target_lang": "en", "max_target_positions": 7}
    torch.save({"cfg": {"model": of_model, "task": of_task}, "model": official(SIZES[0])}, tmp_path / "model.pt")
    model = fairseq(read_checkpoint(tmp_path / "model.pt"), FairseqSettings())
    assert isinstance(model, Translator)
    assert (model.texts.source.language, model.texts.target.language) == ("de", "en")
    assert model.model_settings.longest_target == 9, "the model's own argument goes first"


def test_translations_end_where_the_arguments_say() -> None:
    weights, source = official(SIZES[0]), torch.tensor([[4, 5, EOS]])
    for name in ("decoder.output_projection.weight", "decoder.embed_tokens.weight"):
        weights[name][EOS] = 0
    weights["decoder.output_projection.weight"][EOS] = -50 * weights["decoder.output_projection.weight"][4]
    found: list[int] = []
    for args in ({"max_target_positions": 8}, {}):
        model = fairseq(Checkpoint(weights, args), FairseqSettings(encoder_heads=3, decoder_heads=2))
        assert isinstance(model, Translator)
        [[best]] = model.generate(source, beam=1, max_length_b=30, min_length=6)
        found.append(len(best.tokens))
        [[drawn]] = model.sample(source, max_length_b=30, min_length=6)
        assert len(drawn.tokens) <= found[-1]
        assert best.tokens[-1] == drawn.tokens[-1] == EOS
        assert model.model_settings.longest_target == args.get("max_target_positions", 1024), "fairseq's default"
    assert found[0] == 8 < found[1]
    with pytest.raises(UserError, match="max_target_positions=0 is no length"):
        fairseq(Checkpoint(weights, {"max_target_positions": 0}), FairseqSettings(heads=2))


def test_tables_of_two_lengths_of_learnt_positions() -> None:
    weights = official(SIZES[2])
    weights["decoder.embed_positions.weight"] = weights["decoder.embed_positions.weight"][:9].clone()
    model = direct(weights, encoder_heads=3, decoder_heads=2)
    assert (model.source.length, model.target.length, model.model_settings.longest_target) == (18, 7, 7)
    slow = Slow(SIZES[2], weights)
    source, target = sentences(13, 12)[0], [EOS, 4, 5, 6]
    found = model.log_probs(torch.tensor([source]), torch.tensor([target]))[0]
    torch.testing.assert_close(found, slow.log_probs(source, target), atol=1e-9, rtol=0)
    [[best]] = model.generate(torch.tensor([source]), beam=1, min_length=6)
    assert len(best.tokens) == 7


@pytest.mark.parametrize("version", [1.0, 2.0])
def test_weights_too_old_to_tell_where_norms_stand(version: float) -> None:
    weights = official(SIZES[0]) | {"encoder.version": torch.tensor([version])}
    told = rf"encoder.version is {version:g}\) and cannot tell whether norms stand before or behind the sublayers"
    with pytest.raises(UserError, match=told):
        direct(weights, heads=2)
    args = {"encoder_normalize_before": False, "decoder_normalize_before": False}
    model = fairseq(Checkpoint(weights, args), FairseqSettings(encoder_heads=3, decoder_heads=2))
    assert isinstance(model, Translator)
    assert model.model_settings.order == "post"


@pytest.mark.parametrize("sizes", [SIZES[1], SIZES[2], SIZES[4]], ids=["pre", "norm", "dynamic"])
def test_messages_have_fairseq_s_names(sizes: Sizes) -> None:
    weights = official(sizes)
    told = {"encoder_heads": sizes.heads[0], "decoder_heads": sizes.heads[1]}
    for name in weights:
        if name.endswith(".bias"):
            with pytest.raises(UserError, match=f"checkpoint lacks {re.escape(name)}: give the weights"):
                direct({other: tensor for other, tensor in weights.items() if other != name}, **told)
    name = "decoder.layers.0.encoder_attn.v_proj.bias"
    weights[name] = torch.ones(5)
    with pytest.raises(UserError, match=rf"has other shapes: {name} \(5,\), expected \({sizes.dim},\)"):
        direct(weights, **told)


def test_an_earlier_model_is_replaced_only_on_request(tmp_path: Path, capsys: Any) -> None:
    loaded(official(SIZES[0]), tmp_path, *heads(SIZES[0]))
    config = tmp_path / "ours" / "config.json"
    before = config.read_text()
    capsys.readouterr()
    save_file(official(SIZES[0], seed=1), tmp_path / "official.safetensors")
    assert convert(tmp_path, *heads(SIZES[0])) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "ours already holds config.json: name another folder, or let it be replaced with overwrite=true."
    )
    assert convert(tmp_path, *heads(SIZES[0]), "overwrite=false") == 2
    assert convert(tmp_path, *heads(SIZES[0]), "overwrite=maybe") == 2
    assert "convert.overwrite" in capsys.readouterr().err
    assert config.read_text() == before
    assert convert(tmp_path, *heads(SIZES[0]), "overwrite=true") == 0
    assert config.read_text() != before


def test_a_model_without_dictionaries_says_so(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(official(SIZES[0]), tmp_path, *heads(SIZES[0]))
    told = "note: no dictionary was given to vlp convert: words are called by their numbers, word4, word5 …; "
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(told)
    assert main(["predict", str(tmp_path / "ours"), "word4 word5", "task.decode.beam=1", "--device", "cpu"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "dictionary" in line]
    assert line.startswith(told)
    monkeypatch.setenv("VLP_CACHE", str(tmp_path / "cache"))
    for name, text in (("val.en", "word4\n"), ("val.de", "word5\n")):
        (tmp_path / name).write_text(text)
    words = ["data=text", "data.source=en", "data.target=de", f"data.val={tmp_path / 'val'}", "--device", "cpu"]
    assert main(["eval", str(tmp_path / "ours"), *words, "task.scores=[]", "task.best=-nll", "--json"]) == 0
    assert told.removeprefix("note: ") in " ".join(json.loads(capsys.readouterr().out)["notes"])


def test_a_file_that_torch_did_not_write(tmp_path: Path) -> None:
    for content in (b"encoder: many\nweights\n", b""):
        (tmp_path / "model.pt").write_bytes(content)
        with pytest.raises(UserError, match=r"model\.pt is no file of torch\.save: give a checkpoint that it wrote"):
            read_checkpoint(tmp_path / "model.pt")
    torch.save({"a": torch.ones(100)}, tmp_path / "model.pt")
    (tmp_path / "model.pt").write_bytes((tmp_path / "model.pt").read_bytes()[:200])
    with pytest.raises(UserError, match="cannot be read as weights alone"):
        read_checkpoint(tmp_path / "model.pt")


class Stranger:
    """A class that no checkpoint may bring along."""


def test_other_objects_are_never_loaded(tmp_path: Path, capsys: Any) -> None:
    torch.save({"cfg": Stranger(), "model": official(SIZES[0])}, tmp_path / "model.pt")
    assert convert(tmp_path, "heads=2", file="model.pt") == 2
    assert "pickled objects, which are never loaded; save its state dict on its own" in capsys.readouterr().err
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("module", ["fairseq.meters", "fairseq.logging.meters"])
def test_meters_of_older_trainers_are_passed_over(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    names = ("AverageMeter", "TimeMeter", "StopwatchMeter", "OtherMeter")
    for i in range(1, len(module.split("."))):
        monkeypatch.setitem(sys.modules, module.rsplit(".", i)[0], types.ModuleType("above"))
    made = types.ModuleType(module)
    monkeypatch.setitem(sys.modules, module, made)
    kinds = [type(name, (), {"__module__": module}) for name in names]
    for kind in kinds:
        setattr(made, kind.__name__, kind)
    meters: dict[str, Any] = {kind.__name__: kind() for kind in kinds}
    for meter in meters.values():
        meter.__dict__.update(sum=1.5, count=2)
    other = {"other": meters.pop("OtherMeter")}
    args = argparse.Namespace(encoder_attention_heads=3, decoder_attention_heads=2)
    for extra, name in ((meters, "old.pt"), (meters | other, "other.pt")):
        held = {"args": args, "model": official(SIZES[0]), "extra_state": {"epoch": 3, "train_meters": extra}}
        torch.save(held, tmp_path / name, pickle_protocol=2)
    monkeypatch.undo()
    assert convert(tmp_path, file="old.pt") == 0
    assert convert(tmp_path, "overwrite=true", file="other.pt") == 2
    assert f"it names {module}.OtherMeter" in capsys.readouterr().err


def test_a_namespace_is_names_and_values_alone(tmp_path: Path) -> None:
    torch.save({"args": argparse.Namespace(heads=3), "model": {"a": torch.ones(1)}}, tmp_path / "model.pt")
    checkpoint = read_checkpoint(tmp_path / "model.pt")
    assert checkpoint.args == {"heads": 3}
    assert list(checkpoint.weights) == ["a"]


def test_half_precision_becomes_single() -> None:
    model = direct(
        {name: tensor.half() for name, tensor in official(SIZES[0]).items()}, encoder_heads=3, decoder_heads=2
    )
    assert model.output.weight.dtype == torch.float32


def write_dictionary(path: Path, words: list[str]) -> str:
    path.write_text("".join(f"{word} {100 - i}\n" for i, word in enumerate(words)), encoding="utf-8")
    return str(path)


def test_dictionaries_and_codes_make_text_to_text(tmp_path: Path) -> None:
    source = write_dictionary(tmp_path / "dict.de.txt", ["ein@@", "en", "hund", "ein", *(f"s{i}" for i in range(9))])
    target = write_dictionary(tmp_path / "dict.en.txt", ["a", "dog"])
    (tmp_path / "codes").write_text("#version: 0.2\ne i\nei n\nein </w>\ne n</w>\nh u\nhu n\nhun d</w>\nei n</w>\n")
    sizes = replace(SIZES[0], words=(17, 16))
    save_file(official(sizes), tmp_path / "official.safetensors")
    given = (*heads(sizes), f"source_dict={source}", f"target_dict={target}", f"codes={tmp_path / 'codes'}")
    assert convert(tmp_path, *given) == 2  # 6 words: fairseq fills up to the next multiple of 8, not to 16
    target = write_dictionary(tmp_path / "dict.en.txt", ["a", "dog", *(f"t{i}" for i in range(4, 9))])
    assert convert(tmp_path, *given) == 0
    model = vlplatform.load(tmp_path / "ours")
    assert isinstance(model, Translator)
    assert model.texts.source.encode("einen hund") == [4, 5, 6]
    assert model.texts.target.vocabulary.words[-1] == "madeupword0004"
    [[first]] = model.generate(["einen hund"], beam=2, max_length_b=4)
    assert first.tokens == model.generate(torch.tensor([[4, 5, 6, EOS]]), beam=2, max_length_b=4)[0][0].tokens
    assert first.text == " ".join(first.words)


@pytest.mark.parametrize(
    ("change", "words", "told"),
    [
        (lambda w: w, (), "cannot tell how many heads the model has, nor does the file: add heads=NUMBER"),
        (lambda w: w, ("heads=5",), "dim=12 is not divisible by heads=5"),
        (lambda w: w, ("head=5",), "fairseq.head is not a setting of fairseq"),
        (lambda w: w.pop("decoder.embed_tokens.weight"), ("heads=2",), "has no decoder.embed_tokens.weight"),
        (
            lambda w: w.pop("encoder.layers.1.fc2.bias"),
            ("heads=2",),
            "lacks encoder.layers.1.fc2.bias: give the weights",
        ),
        (lambda w: w.pop("encoder.layers.0.fc1.weight"), ("heads=2",), "lacks encoder.layers.0.fc1.weight"),
        (lambda w: w.update(extra=torch.ones(1)), ("heads=2",), "has beyond the model extra"),
        (
            lambda w: w.update({"decoder.project_in_dim.weight": torch.ones(1)}),
            ("heads=2",),
            "has embeddings of another width than the model, which is not read here",
        ),
        (
            lambda w: w.update(
                {"encoder.layer_norm.weight": torch.ones(12), "encoder.layer_norm.bias": torch.ones(12)}
            ),
            ("heads=2",),
            "norms before the sublayers on one side alone",
        ),
        (
            lambda w: w.update({"encoder.embed_positions.weight": torch.ones(9, 12)}),
            ("heads=2",),
            r"tables of \[9\] learnt positions",
        ),
    ],
)
def test_what_is_no_such_model_is_refused(
    change: Callable[[dict[str, Tensor]], Any], words: tuple[str, ...], told: str, tmp_path: Path, capsys: Any
) -> None:
    weights = official(SIZES[0])
    change(weights)
    save_file(weights, tmp_path / "official.safetensors")
    assert convert(tmp_path, *words) == 2
    message = capsys.readouterr().err
    assert re.search(told, message), message
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"activation_fn": "swish"}, "activation_fn=swish, which is not read here"),
        ({"no_cross_attention": True}, "has no_cross_attention=true"),
        ({"adaptive_softmax_cutoff": "100,200"}, "has adaptive softmax"),
        ({"encoder_normalize_before": True}, "encoder_normalize_before=True without a norm behind the last layer"),
        ({"weight_softmax": False}, "has weight_softmax=false"),
        ({"dropout": "much"}, "argument dropout='much' is no rate"),
    ],
)
def test_arguments_of_another_model_are_refused(args: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        fairseq(Checkpoint(official(SIZES[0]), args), FairseqSettings(heads=2))


def test_filters_that_heads_do_not_divide() -> None:
    with pytest.raises(UserError, match=r"encoder.layers.0.conv.weight_linear has 9 rows, no multiple of 2 heads"):
        direct(official(SIZES[3]), heads=2)


@pytest.mark.parametrize(
    "values", [{"target_dict": "d"}, {"codes": "c"}, {"sentencepiece": "m"}, {"tokenize": "moses"}]
)
def test_words_need_a_dictionary(values: dict[str, Any]) -> None:
    ((name, value),) = values.items()
    with pytest.raises(ValueError, match=f"{name}={value} needs source_dict"):
        FairseqSettings(heads=2, **values)


def test_shared_vectors_need_one_dictionary(tmp_path: Path) -> None:
    paths = [write_dictionary(tmp_path / f"dict.{i}.txt", [f"{i}{j}" for j in range(9)]) for i in "ab"]
    with pytest.raises(UserError, match=r"their dictionaries have other words: give source_dict=FILE alone"):
        direct(official(SIZES[2]), heads=2, source_dict=paths[0], target_dict=paths[1])


def test_dictionaries_that_do_not_match(tmp_path: Path) -> None:
    path = write_dictionary(tmp_path / "dict.txt", ["a", "b"])
    with pytest.raises(UserError, match=r"dict.txt has 6 words with the 4 special symbols, the weights have 17"):
        direct(official(SIZES[0]), heads=2, source_dict=path)
    with pytest.raises(UserError, match="special symbols at 0 to 3 as all of fairseq's"):
        direct(official(SIZES[0]), heads=2, source_dict=path, pad=0, bos=1)
