"""compressions.py: the methods of --compress as rows of tables, with flags of zr-train beside SHAPE's. The batch of a step is the same in all
rows. A build that lacks a method refuses its row."""
SHAPE = dict(layers=4, hidden=192, heads=6, seq=64, batch=4, ranks=2, stage=1, threads=1, warmup=40, eval_every=0)  # make demo's model
NODES = dict(ranks=4, batch=2, stage=3)
METHODS = {"none": {},
           "qwz": dict(compress="qwz"),
           "qgz": dict(compress="qgz"),
           "int8": dict(compress="parameters:int8,gradients:int8"),
           "int4": dict(compress="parameters:int4,gradients:int4"),
           "onebit": dict(compress="gradients:onebit"),
           "powersgd": dict(compress="powersgd"),
           "topk": dict(compress="topk:0.01"),
           "sdp4bit": dict(compress="sdp4bit"),
           "zerone": dict(compress="gradients:zerone", stage=0),
           "none, stage 3 on 4 ranks": NODES,
           "qwz + qgz + hpz on 4 ranks": dict(compress="qwz,qgz,hpz", node_size=2, **NODES)}


def is_unknown(run):
    """Whether this build lacks the method of a run that it has refused."""
    return run.code == 2 and "not KIND:METHOD" in run.err
