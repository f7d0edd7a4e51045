"""Functions of files, and records written by one's own writer."""

import tempfile
from pathlib import Path


def results(tf):
    folder = Path(tempfile.mkdtemp())
    found = {}
    with tf.Session() as session:
        for name in ("b.txt", "a.txt", "c.md"):
            session.run(tf.io.write_file(str(folder / name), f"in {name}"))
        matching = session.run(tf.io.matching_files(str(folder / "*.txt")))
        found["matching"] = [Path(path.decode()).name for path in matching]
        found["read"] = session.run(tf.io.read_file(str(folder / "b.txt")))
        constant = tf.constant(2.5, name="constant")
        path = tf.io.write_graph(session.graph, str(folder), "graph.pbtxt")
        found["graph"] = 'name: "constant"' in Path(path).read_text()
        found["graph_value"] = session.run(constant)
    for compression in (None, "GZIP", "ZLIB"):
        kind = tf.io.TFRecordCompressionType
        options = compression and tf.io.TFRecordOptions(getattr(kind, compression))
        path = str(folder / f"records_{compression}")
        with tf.io.TFRecordWriter(path, options) as writer:
            for i in range(3):
                writer.write(b"record" * i)
        found[f"records_{compression}"] = [record.hex() for record in tf.io.tf_record_iterator(path, options)]
    found["records_bytes"] = Path(folder / "records_None").read_bytes().hex()
    return found
