#!/usr/bin/env python3
"""Compares the heads of hstu encode with Hugging Face: classifiers with `transformers`, sentence embeddings and
cross-encoders with `sentence-transformers`.

Makes small models of random weights with the classes of both packages, saves them as the packages do, and compares
labels, probabilities and embeddings of random texts in float32.
Usage: tests/encoder/compare_heads.py HSTU; exits with 77 where a package is missing.
"""
import contextlib
import io
import json
import logging
import os
import random
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [chr(c) for c in range(97, 123)] + ["##" + chr(c) for c in range(97, 123)]
SIZE = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, vocab_size=60,
            max_position_embeddings=40)
DISTIL = dict(dim=24, n_layers=2, n_heads=3, hidden_dim=40, vocab_size=60, max_position_embeddings=40)
LIMIT = 1e-5


def run(hstu, folder, lines, *more):
    path = os.path.join(folder, "in.jsonl")
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)
    command = [hstu, "encode", folder, "--input", path, "--device", "cpu", *more]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def text_of(r):
    return " ".join("".join(r.choice("aBcDefxyzÉ") for _ in range(r.randrange(1, 6))) for _ in range(r.randrange(0, 12)))


def randomise(model):
    import torch

    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model.eval()


def largest(got, want):
    """The largest difference, of numbers of about 1."""
    return max(abs(a - b) / max(1, abs(b)) for a, b in zip(got, want, strict=True))


def compare_classifiers(hstu, r):
    import torch
    import transformers as hf
    from safetensors.torch import load_file

    names = {0: "sad", 1: "glad", 2: "a \"label\""}
    roberta = dict(**SIZE, type_vocab_size=1, pad_token_id=1)
    models = [hf.BertForSequenceClassification(hf.BertConfig(**SIZE, id2label=names)),
              hf.BertForSequenceClassification(hf.BertConfig(**SIZE, num_labels=4, problem_type="multi_label_classification")),
              hf.BertForSequenceClassification(hf.BertConfig(**SIZE, num_labels=2, problem_type="regression")),
              hf.RobertaForSequenceClassification(hf.RobertaConfig(**roberta)),
              hf.XLMRobertaForSequenceClassification(hf.XLMRobertaConfig(**roberta, num_labels=1)),
              hf.DistilBertForSequenceClassification(hf.DistilBertConfig(**DISTIL, num_labels=5)),
              hf.BertForTokenClassification(hf.BertConfig(**SIZE, id2label=names)),
              hf.RobertaForTokenClassification(hf.RobertaConfig(**roberta, num_labels=7))]
    worst = 0.0
    for model in models:
        randomise(model)
        c, kind = model.config, type(model).__name__
        of_tokens, problem = kind.endswith("ForTokenClassification"), c.problem_type
        function = {"multi_label_classification": torch.sigmoid}.get(problem, lambda x: torch.softmax(x, -1))
        is_number = problem == "regression" or (c.num_labels == 1 and not of_tokens)
        sequences = [[r.randrange(2, 60) for _ in range(r.randrange(1, 38))] for _ in range(9)]
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            lines = [json.loads(x) for x in run(hstu, folder, [{"ids": s} for s in sequences], "--batch-tokens", "50").splitlines()]
            out = os.path.join(folder, "out.safetensors")
            run(hstu, folder, [{"ids": s} for s in sequences], "--out", out)
            got = load_file(out)
        assert ("probabilities" in got) != is_number, kind
        for b, (s, line) in enumerate(zip(sequences, lines, strict=True)):
            with torch.no_grad():
                want = model(torch.tensor([s])).logits[0]
            rows = slice(got["offsets"][b], got["offsets"][b + 1]) if of_tokens else slice(b, b + 1)
            want, p = want.view(-1, c.num_labels), function(want).view(-1, c.num_labels)
            worst = max(worst, largest(got["logits"][rows].flatten().tolist(), want.flatten().tolist()))
            if not is_number:
                worst = max(worst, largest(got["probabilities"][rows].flatten().tolist(), p.flatten().tolist()))
            for row, x, y in zip(line["tokens"] if of_tokens else [line], want, p, strict=True):
                assert list(row["values" if is_number else "probabilities"]) == [c.id2label[i] for i in range(c.num_labels)], row
                worst = max(worst, largest(row["values" if is_number else "probabilities"].values(), (x if is_number else y).tolist()))
                assert is_number or problem or row["label"] == c.id2label[x.argmax().item()], row
    print(f"{len(models)} classifiers, largest difference {worst:.2e}")
    return worst > LIMIT


def save_bert(folder, *, cased=False):
    import transformers as hf

    randomise(hf.BertModel(hf.BertConfig(**SIZE))).save_pretrained(folder)
    add_words(folder, cased)


def add_words(folder, cased=False):
    with open(os.path.join(folder, "vocab.txt"), "w") as f:
        f.write("\n".join(WORDS) + "\n")
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "BertTokenizer", "do_lower_case": not cased}, f)


def older(folder, longest, lower, modes):
    """Rewrites the files as versions of sentence-transformers before 5 have them."""
    with open(os.path.join(folder, "modules.json")) as f:
        modules = json.load(f)
    for m in modules:
        m["type"] = "sentence_transformers.models." + m["type"].split(".")[-1]
    with open(os.path.join(folder, "modules.json"), "w") as f:
        json.dump(modules, f)
    with open(os.path.join(folder, "sentence_bert_config.json"), "w") as f:
        json.dump({"max_seq_length": longest, "do_lower_case": lower}, f)
    flags = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens"}
    with open(os.path.join(folder, "1_Pooling", "config.json"), "w") as f:
        json.dump({"word_embedding_dimension": 24} | {"pooling_mode_" + v: k in ((modes,) if isinstance(modes, str) else modes) for k, v in flags.items()}, f)


def compare_sentences(hstu, r):
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

    cases = [("mean", [], False, False), ("cls", [Normalize()], True, False), ("max", [Dense(24, 16)], False, True),
             ("mean_sqrt_len_tokens", [Dense(24, 30, bias=False, activation_function=torch.nn.Identity()), Normalize()], True, True),
             (("mean", "cls"), [Normalize(), Dense(48, 8, activation_function=torch.nn.GELU())], False, False),
             (("cls", "max", "mean", "mean_sqrt_len_tokens"), [Normalize()], True, False)]
    worst, texts = 0.0, [text_of(r) for _ in range(12)]
    for modes, more, is_old, lower in cases:
        with tempfile.TemporaryDirectory() as base, tempfile.TemporaryDirectory() as folder:
            save_bert(base, cased=True)
            model = SentenceTransformer(modules=[Transformer(base, max_seq_length=20, do_lower_case=lower),
                                                 Pooling(24, pooling_mode=modes), *more])
            for p in more:
                randomise(p)
            model.save(folder)
            if is_old:
                add_words(folder, cased=True)
                older(folder, 20, lower, modes)
            want = model.encode(texts, convert_to_numpy=True)
            got = [json.loads(x)["embedding"] for x in run(hstu, folder, [{"text": t} for t in texts]).splitlines()]
            for a, b in zip(got, want.tolist(), strict=True):
                worst = max(worst, largest(a, b))
            hidden = run(hstu, folder, [{"text": "a b"}], "--head", "hidden")
            assert list(json.loads(hidden)) == ["hidden", "pooled"], hidden
    print(f"{len(cases)} sentence models, largest difference {worst:.2e}")
    return worst > LIMIT


def compare_pairs(hstu, r):
    import torch
    import transformers as hf
    from sentence_transformers import CrossEncoder

    worst, pairs = 0.0, [(text_of(r)[:12], text_of(r)[:12]) for _ in range(9)]
    for function in (torch.nn.Sigmoid(), torch.nn.Identity()):
        with tempfile.TemporaryDirectory() as base, tempfile.TemporaryDirectory() as folder:
            randomise(hf.BertForSequenceClassification(hf.BertConfig(**SIZE, num_labels=1))).save_pretrained(base)
            add_words(base)
            model = CrossEncoder(base, activation_fn=function)
            model.save_pretrained(folder)
            want = model.predict(pairs)
            for line, x in zip(run(hstu, folder, [{"text": a, "pair": b} for a, b in pairs]).splitlines(), want.tolist(), strict=True):
                row = json.loads(line)
                worst = max(worst, largest((row.get("probabilities") or row["values"]).values(), [x]))
    print(f"cross-encoders, largest difference {worst:.2e}")
    return worst > LIMIT


def main():
    try:
        import sentence_transformers  # noqa: F401
        import transformers
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    r, hstu = random.Random(3), sys.argv[1]
    with contextlib.redirect_stderr(io.StringIO()):
        bad = compare_classifiers(hstu, r) + compare_sentences(hstu, r) + compare_pairs(hstu, r)
    sys.exit(1 if bad else 0)


main()
