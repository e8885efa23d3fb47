"""torch_shapes.py: out-of-memory failures of PyTorch programs as public reports describe them, one function each, on the model of
torch_allocator.py. Each ends in OutOfMemory, or returns where a program without a refusal is asked why it grew."""
import random

from torch_allocator import MIB, OutOfMemory, Torch, write

GIB = 1 << 30
FORWARD = "/venv/site-packages/torch/nn/modules/linear.py:125 forward, model.py:40 forward, train.py:50 step"
BACKWARD = "/venv/site-packages/torch/autograd/graph.py:825 _engine_run_backward, /venv/site-packages/torch/_tensor.py:626 backward, train.py:52 step"
OPTIMIZER = "/venv/site-packages/torch/optim/adamw.py:150 _init_group, /venv/site-packages/torch/optim/adamw.py:220 step, train.py:53 step"
INIT = "/venv/site-packages/torch/nn/modules/module.py:1340 convert, /venv/site-packages/torch/nn/modules/module.py:930 _apply, train.py:20 main"


def weights(torch, count, size, where=INIT):
    return [torch.alloc(size, where) for _ in range(count)]


def step(torch, layers, size, kept=0, grads=0):
    """Forward, backward: activations come and go; the first `kept` of them stay, and are returned."""
    blocks = [torch.alloc(size, FORWARD) for _ in range(layers)]
    for block in reversed(blocks[kept:]):
        if grads:
            torch.temporary(grads, BACKWARD)
        torch.free(block)
    return blocks[:kept]


def changing_lengths(torch=None):
    """Each step has another sequence length, so that no free piece fits the next step's."""
    torch, rng, held = torch or Torch(2 * GIB), random.Random(3), []
    weights(torch, 20, 20 * MIB)
    for number in range(200):
        length = 14 + number // 3 + rng.randrange(6)
        held += [torch.alloc(length * MIB + 512 * rng.randrange(900), FORWARD) for _ in range(9)]
        held += [torch.alloc(rng.randrange(2, 6) * MIB, FORWARD) for _ in range(4)]
        rng.shuffle(held)
        while len(held) > 14:
            torch.free(held.pop())
    return torch


def validation_pins():
    """Outputs of a validation, kept until the next one, lie in segments of the training's activations when a later epoch asks
    for larger ones."""
    torch, kept = Torch(2 * GIB), []
    weights(torch, 10, 20 * MIB)
    for epoch in range(9):
        for _ in range(6):
            step(torch, 20, (30 + 6 * epoch) * MIB)
        blocks = [torch.alloc(12 * MIB, "model.py:40 forward, train.py:71 validate") for _ in range(60)]
        while kept:
            torch.free(kept.pop())
        for index, block in enumerate(blocks):
            if index % 3:
                torch.free(block)
            else:
                kept.append(block)
    return torch


def interleaved_loading():
    """Weights of two sizes come in turn, each from a copy in another precision that is freed: the holes fit neither."""
    torch = Torch(2 * GIB)
    for layer in range(400):
        where = f"/venv/site-packages/torch/serialization.py:1400 load, load.py:{30 + layer % 2} load_weights"
        copy = torch.alloc((40 + 4 * layer) * MIB, where)
        torch.alloc((21 + 2 * layer) * MIB, where)
        torch.free(copy)
    return torch


def side_stream():
    """One large temporary on a side stream leaves its segment there, pinned by a small block."""
    torch = Torch(2 * GIB)
    weights(torch, 30, 20 * MIB)
    step(torch, 10, 30 * MIB)
    big = torch.alloc(800 * MIB, "prefetch.py:12 prefetch, train.py:48 step", stream=7)
    torch.free(big)
    torch.alloc(4 * MIB, "prefetch.py:15 prefetch, train.py:48 step", stream=7)
    for _ in range(8):
        step(torch, 14, 60 * MIB)
    return torch


def record_stream():
    """Frees wait for a stream that lags behind."""
    torch = Torch(2 * GIB)
    weights(torch, 30, 20 * MIB)
    for _ in range(40):
        step(torch, 4, 20 * MIB)
        block = torch.alloc(64 * MIB, "comm.py:20 all_gather, train.py:49 step")
        torch.record_stream(block, 9)
        torch.free(block)
    return torch


def flush_each_step():
    """torch.cuda.empty_cache() after each step: each step asks the driver for all of its memory again."""
    torch = Torch(2 * GIB)
    weights(torch, 10, 20 * MIB)
    for _ in range(30):
        step(torch, 12, 30 * MIB)
        torch.empty_cache()
    return torch


def optimizer_state():
    """The state of the optimizer is made in the first step, and the second has no room for its activations."""
    torch = Torch(2 * GIB)
    weights(torch, 25, 20 * MIB)
    step(torch, 20, 24 * MIB)
    torch.grads = [torch.alloc(20 * MIB, BACKWARD) for _ in range(25)]
    for _ in range(25):
        torch.alloc(20 * MIB, OPTIMIZER)
        torch.alloc(20 * MIB, OPTIMIZER)
    step(torch, 20, 24 * MIB)
    return torch


def checkpoint_kept():
    """A loaded checkpoint stays on the device beside the model."""
    torch = Torch(2 * GIB)
    weights(torch, 40, 20 * MIB)
    weights(torch, 40, 20 * MIB, "/venv/site-packages/torch/serialization.py:1400 load, train.py:22 main")
    for _ in range(4):
        step(torch, 30, 20 * MIB)
    return torch


def long_logits():
    """Logits of a long sequence in fp32: one request as large as the rest."""
    torch = Torch(4 * GIB)
    weights(torch, 40, 20 * MIB)
    for _ in range(12):
        step(torch, 20, 24 * MIB)
    kept = [torch.alloc(24 * MIB, FORWARD) for _ in range(60)]
    torch.alloc(3 * GIB, "loss.py:9 cross_entropy, train.py:51 step")
    return torch, kept


def cached_beside_library():
    """A library outside of PyTorch finds no room while PyTorch caches most of the device; nothing is refused to PyTorch."""
    torch = Torch(2 * GIB)
    weights(torch, 10, 20 * MIB)
    for _ in range(4):
        step(torch, 24, 60 * MIB)
    return torch


def weights_twice():
    """An engine wakes from its sleep: the weights are loaded again before the old ones are gone."""
    torch = Torch(2 * GIB)
    weights(torch, 45, 20 * MIB)
    for _ in range(6):
        step(torch, 8, 20 * MIB)
    for _ in range(60):
        torch.alloc(20 * MIB, "engine/worker.py:88 wake_up, engine/core.py:30 resume")
    return torch


def split_limit():
    """max_split_size_mb keeps large blocks whole: requests that are a little smaller take all of one."""
    torch = Torch(2 * GIB, max_split=64 * MIB)
    weights(torch, 4, 20 * MIB)
    for size in (84, 66, 84, 66):
        step(torch, 21, size * MIB)
    held = [torch.alloc(66 * MIB, FORWARD) for _ in range(21)]
    torch.temporary(570 * MIB, "model.py:44 forward, train.py:50 step")
    return torch, held


def losses_kept():
    """Losses are kept with their graph: some activations of each step stay."""
    torch, losses = Torch(2 * GIB), []
    weights(torch, 20, 20 * MIB)
    for _ in range(400):
        losses += step(torch, 8, 10 * MIB, kept=1)
        losses.append(torch.alloc(512, "loss.py:9 cross_entropy, train.py:51 step"))
    return torch


def evaluation_kept():
    """Outputs of an evaluation stay on the device, each in a segment with slack."""
    torch = Torch(2 * GIB)
    weights(torch, 10, 20 * MIB)
    for _ in range(4000):
        big = torch.alloc(60 * MIB, FORWARD)
        torch.free(big)
        torch.alloc(6 * MIB, "model.py:41 forward, eval.py:30 evaluate")
        other = [torch.alloc(11 * MIB, FORWARD) for _ in range(3)]
        for block in other:
            torch.free(block)
    return torch


def graph_pools():
    """Each captured shape has a pool of its own, and keeps it."""
    torch = Torch(2 * GIB)
    weights(torch, 20, 20 * MIB)
    for number in range(1, 40):
        torch.pool = (0, number)
        torch.kept_pools.add(torch.pool)
        step(torch, 4, (16 + number) * MIB)
        torch.pool = (0, 0)
        step(torch, 4, 20 * MIB)
    return torch


def shared_card():
    """Other processes hold most of the device."""
    torch = Torch(11 * GIB, outside=10 * GIB + 200 * MIB)
    weights(torch, 20, 20 * MIB)
    for _ in range(10):
        step(torch, 30, 20 * MIB)
    return torch


def trials_kept():
    """A search over settings keeps the model and the optimizer of each trial."""
    torch = Torch(4 * GIB)
    for _ in range(60):
        weights(torch, 10, 20 * MIB)
        step(torch, 8, 20 * MIB, grads=4 * MIB)
        weights(torch, 10, 20 * MIB, OPTIMIZER)
        for _ in range(5):
            step(torch, 8, 20 * MIB, grads=4 * MIB)
    return torch


def evaluation_with_gradients():
    """The first validation after an epoch keeps its activations: torch.no_grad() is missing."""
    torch = Torch(4 * GIB)
    weights(torch, 40, 20 * MIB)
    for _ in range(30):
        step(torch, 20, 24 * MIB, grads=20 * MIB)
    weights(torch, 60, 72 * MIB, FORWARD.replace("train.py:50 step", "train.py:80 validate"))
    return torch


def engine_cache():
    """An engine has reserved its key-value cache by the memory of a profile run; sampling needs more than that had."""
    torch = Torch(8 * GIB)
    weights(torch, 60, 40 * MIB)
    step(torch, 10, 60 * MIB)
    torch.alloc(4700 * MIB, "engine/worker.py:310 allocate_kv_cache, engine/core.py:20 start")
    for _ in range(10):
        step(torch, 6, 8 * MIB)
    weights(torch, 40, 30 * MIB, "engine/sampler.py:80 top_p, engine/core.py:60 step")
    return torch


def hidden_state_kept():
    """A recurrent state is not detached, so that each step keeps the graph of all steps before it."""
    torch = Torch(2 * GIB)
    weights(torch, 10, 20 * MIB)
    for _ in range(300):
        step(torch, 4, 3 * MIB, kept=2, grads=2 * MIB)
        torch.temporary(2 * MIB, OPTIMIZER)
    return torch


def second_of_three():
    """Three devices: the second refuses, and has the fewest events."""
    first, third = Torch(2 * GIB), Torch(2 * GIB, device=2)
    for one in (first, third):
        weights(one, 10, 20 * MIB)
        for _ in range(20):
            step(one, 10, 20 * MIB)
    second = Torch(GIB, device=1)
    try:
        weights(second, 100, 20 * MIB)
    except OutOfMemory:
        pass
    return first, second, third


SHAPES = (changing_lengths, validation_pins, interleaved_loading, side_stream, record_stream, flush_each_step, optimizer_state,
          checkpoint_kept, long_logits, cached_beside_library, weights_twice, split_limit, losses_kept, evaluation_kept,
          graph_pools, shared_card, trials_kept, evaluation_with_gradients, engine_cache, hidden_state_kept, second_of_three)


def write_shape(shape, where):
    """Writes the snapshot of a shape. Whether a request was refused."""
    made, init = [], Torch.__init__

    def noted(self, *arguments, **settings):
        init(self, *arguments, **settings)
        made.append(self)

    Torch.__init__, refused = noted, False
    try:
        shape()
    except OutOfMemory:
        refused = True
    finally:
        Torch.__init__ = init
    write(where, *sorted(made, key=lambda one: one.device))
    return refused or any(event["action"] == "oom" for one in made for event in one.trace)
