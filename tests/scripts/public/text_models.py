"""Models of public repositories that read and write texts, speech included; as `models`."""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from made_data import floats, made, one_hot, rng, run_named, stand_in, train


def tacotron() -> None:
    """keithito's, with a small encoder: five runs of training, alignments included."""
    stand_in("unidecode", "inflect")
    libraries: Any = sys.modules
    libraries["inflect"].engine = libraries["unidecode"].unidecode = object
    from hparams import hparams
    from models.tacotron import Tacotron

    hparams.parse("num_mels=8,num_freq=17,outputs_per_step=2,embed_depth=16,prenet_depths=[16,8],encoder_depth=16")
    hparams.parse("postnet_depth=16,attention_depth=16,decoder_depth=16")
    net = Tacotron(hparams)
    texts = tf.constant(rng.randint(1, 30, [2, 7]), tf.int32)
    net.initialize(texts, tf.constant([7, 5]), floats(2, 6, 8), floats(2, 6, 17))
    net.add_loss()
    net.add_optimizer(tf.Variable(0, trainable=False))
    train([net.loss, net.alignments, net.linear_outputs], train_op=net.optimize, steps=5)


def transformer() -> None:
    from hparams import Hparams
    from model import Transformer

    vocabulary = Path(tempfile.mkdtemp()) / "vocabulary"
    vocabulary.write_text("\n".join(["<pad>", "<unk>", "<s>", "</s>", *(f"w{i}" for i in range(16))]))
    sizes = "--vocab_size 20 --d_model 16 --d_ff 32 --num_blocks 2 --num_heads 2 --maxlen1 9 --maxlen2 9"
    options = Hparams().parser.parse_args(["--vocab", str(vocabulary), *sizes.split()])
    words, starts, ends = (tf.constant(rng.randint(0, 20, [3, 6]), tf.int32) for _ in range(3))
    lengths, texts = tf.constant([6, 6, 6]), tf.constant(["a", "b", "c"])
    loss, train_op, *_ = Transformer(options).train((words, lengths, texts), (starts, ends, lengths, texts))
    train(loss, train_op=train_op)


def reader() -> None:
    """R-Net: answers in a paragraph."""
    import model

    answers = np.eye(9, dtype=np.float32)[[2, 3]]
    words = [rng.randint(1, 30, shape) for shape in ([2, 9], [2, 5], [2, 9, 7], [2, 5, 7])]
    batch = [*(tf.constant(part, tf.int32) for part in words), tf.constant(answers), tf.constant(answers)]
    config = SimpleNamespace(
        batch_size=2, char_limit=7, para_limit=9, ques_limit=5, hidden=8, char_dim=6, char_hidden=7, grad_clip=5.0,
        use_cudnn=False, keep_prob=0.7, ptr_keep_prob=0.7,
    )  # fmt: skip
    batches = SimpleNamespace(get_next=lambda: [*batch, tf.constant([0, 1])])
    net = model.Model(config, batches, rng.rand(30, 5), rng.rand(30, 6))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run([net.is_train.assign(True), net.lr.assign(0.5)])
        for _ in range(5):
            print(session.run([net.loss, net.train_op, net.yp1, net.yp2]))


def chinese_names() -> None:
    """zjy-ucas/ChineseNER: a bidirectional LSTM below a CRF."""
    stand_in("jieba")
    sys.modules["jieba"].initialize = print  # type: ignore[attr-defined]
    import model

    net = model.Model({
        "lr": 0.01, "char_dim": 6, "lstm_dim": 8, "seg_dim": 4, "num_tags": 5, "num_chars": 30, "clip": 5.0,
        "optimizer": "adam",
    })  # fmt: skip
    train(net.loss, lambda: made({net.dropout: 0.5}, high=4), train_op=net.train_op)


def tagger() -> None:
    """Determined22/zh-NER-TF, by its own epochs."""
    stand_in("eval", "data", "utils")
    names: Any = [sys.modules[name] for name in ("eval", "data", "utils")]
    names[0].conlleval, names[1].pad_sequences, names[1].batch_yield = None, None, None
    names[2].get_logger = lambda _: None
    import model

    arguments = SimpleNamespace(
        batch_size=4, epoch=1, hidden_dim=8, CRF=True, update_embedding=True, dropout=0.5, optimizer="Adam",
        lr=0.01, clip=5.0, shuffle=False,
    )  # fmt: skip
    tags = {f"t{i}": i for i in range(5)}
    paths = dict.fromkeys(["model_path", "summary_path", "log_path", "result_path"], "")
    net = model.BiLSTM_CRF(arguments, rng.rand(30, 6), tags, {}, paths, tf.ConfigProto())
    net.build_graph()
    given = {net.sequence_lengths: [6, 4, 5, 3], net.lr_pl: 0.01, net.dropout_pl: 0.5}
    train(net.loss, lambda: made(given, high=5), train_op=net.train_op)


def sequence_tagging() -> None:
    """guillaumegenthial's, with characters."""
    from model.ner_model import NERModel

    config = SimpleNamespace(
        vocab_tags={f"t{i}": i for i in range(5)}, ntags=5, nwords=30, nchars=20, use_chars=True, use_crf=True,
        hidden_size_char=6, hidden_size_lstm=8, dim_word=7, dim_char=5, embeddings=None, train_embeddings=True,
        lr_method="adam", clip=5.0, logger=SimpleNamespace(info=print), dir_output=tempfile.mkdtemp(),
    )  # fmt: skip
    net = NERModel(config)
    net.build()
    given = {
        net.sequence_lengths: [6, 4, 5, 3], net.lr: 0.01, net.dropout: 0.5,
        net.word_lengths: rng.randint(1, 6, [4, 6]), net.char_ids: rng.randint(0, 20, [4, 6, 6]),
    }  # fmt: skip
    train(net.loss, lambda: made(given, high=5), train_op=net.train_op)


def classifier(module: str, name: str, *sizes: str) -> None:
    """dongjun-Lee's classifiers of texts."""
    net = getattr(import_module(module), name)(*map(int, sizes))
    given = {net.y: rng.randint(0, 3, 4)}
    train([net.loss, net.accuracy], lambda: made(given, high=4), train_op=net.optimizer, steps=4)


def news_classifier(module: str, name: str, config: str) -> None:
    """gaussic's classifiers of Chinese news."""
    modules = import_module(module)
    options = getattr(modules, config)()
    options.seq_length, options.vocab_size, options.hidden_dim, options.num_filters = 12, 30, 16, 8
    net = getattr(modules, name)(options)
    train([net.loss, net.acc], lambda: made({net.keep_prob: 0.5}, high=30), train_op=net.optim)


def memory_network() -> None:
    """domluna's end-to-end memory network."""
    from memn2n import MemN2N

    with tf.Session() as session:
        net = MemN2N(4, 20, 5, 6, 8, session=session)
        for _ in range(6):
            stories, queries = rng.randint(0, 20, [4, 6, 5]), rng.randint(0, 20, [4, 5])
            print(net.batch_fit(stories, queries, one_hot(4, 20), 0.01), net.predict(stories, queries))


def language_memory() -> None:
    """carpedm20's memory network of words."""
    from model import MemN2N

    config = SimpleNamespace(
        nwords=30, init_hid=0.1, init_std=0.05, batch_size=4, nepoch=1, nhop=3, edim=8, mem_size=6, lindim=4,
        max_grad_norm=50, show=False, is_test=False, checkpoint_dir=tempfile.mkdtemp(), init_lr=0.01, data_name="",
    )  # fmt: skip
    with tf.Session() as session:
        net = MemN2N(config, session)
        net.build_model()
        net.train(rng.randint(0, 30, 60).tolist())


def glove() -> None:
    import tf_glove

    model = tf_glove.GloVeModel(8, 2, batch_size=16)
    model.fit_to_corpus([[f"w{i}" for i in rng.randint(0, 12, 20)] for _ in range(6)])
    model.train(3)


if __name__ == "__main__":
    run_named(globals())
