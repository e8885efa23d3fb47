"""rehearse_models.py MODEL: an unmodified training program for rehearse_check.py and pytorch_check.py: models of transformers and torchvision with
random weights, as their documentation trains them. The last line says what was trained, how much memory the imports took and how long the
steps of text() computed."""
import resource
import sys
import time

import torch

STEPS = 3
spent = {}  # seconds, and KiB


def note_imports():
    spent["imports"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def text(config, model_class, batch, length, checkpointing=False):
    note_imports()
    model = model_class(config).cuda()
    begun = time.process_time()
    if checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model.train()
    for _ in range(STEPS):
        ids = torch.randint(0, config.vocab_size, (batch, length), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
    spent["steps"] = time.process_time() - begun
    return model


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    return text(GPT2Config(), GPT2LMHeadModel, 8, 1024)


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4,
                         max_position_embeddings=2048, use_cache=False)
    return text(config, LlamaForCausalLM, 4, 1024, checkpointing=True)


def compiled():
    """By torch.compile, as nanoGPT: Triton's kernels are compiled and launched by the driver."""
    from transformers import GPT2Config, GPT2LMHeadModel
    return text(GPT2Config(n_layer=4, use_cache=False), lambda config: torch.compile(GPT2LMHeadModel(config)), 8, 512)


def experts():
    """Each expert gets the tokens that the router's results choose for it: --nonzero."""
    from transformers import MixtralConfig, MixtralForCausalLM
    config = MixtralConfig(hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=8, use_cache=False,
                           experts_implementation="eager")
    return text(config, MixtralForCausalLM, 4, 512)


def bert():
    """By transformers' Trainer."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
    data = [{"input_ids": torch.randint(0, 30000, (128,)), "labels": torch.tensor(i % 2)} for i in range(64)]
    model = BertForSequenceClassification(BertConfig())
    Trainer(model=model, train_dataset=data,
            args=TrainingArguments(output_dir="bert", max_steps=STEPS, per_device_train_batch_size=16, report_to=[], save_strategy="no", fp16=True)).train()
    return model


def t5():
    from transformers import T5Config, T5ForConditionalGeneration
    model = T5ForConditionalGeneration(T5Config(decoder_start_token_id=0)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        source, target = (torch.randint(1, 32000, (16, length), device="cuda") for length in (256, 64))
        loss = model(input_ids=source, labels=target).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
    return model


def vit():
    """By transformers' Trainer, with gradient checkpointing."""
    from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification
    data = [{"pixel_values": torch.randn(3, 224, 224), "labels": i % 10} for i in range(32)]
    model = ViTForImageClassification(ViTConfig(num_labels=10))
    Trainer(model=model, train_dataset=data, eval_dataset=data,
            args=TrainingArguments(output_dir="vit", num_train_epochs=2, per_device_train_batch_size=16, report_to=[], bf16=True, gradient_checkpointing=True,
                                   eval_strategy="epoch", save_strategy="no", dataloader_num_workers=2)).train()
    return model


def generate():
    """Loops and checks that read what kernels compare."""
    from transformers import GPT2Config, GPT2LMHeadModel
    model = GPT2LMHeadModel(GPT2Config(n_layer=4)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 50257, (8, 256), device="cuda")
    wide, low = torch.zeros(64, 1024, device="cuda"), torch.full((1 << 17,), -1, dtype=torch.int8, device="cuda")
    assert torch.equal(wide[:, :4], wide[:, :4].clone()) and (low == -1).all(), "first elements stand for wide and low"
    for _ in range(2):
        assert (ids >= 0).all() and (ids < 50257).all(), "ids are out of range"
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        assert torch.isfinite(norm) and torch.isfinite(loss).all() and torch.equal(ids, ids.clone()), "not finite"
        optimizer.step()
        optimizer.zero_grad()
    made = model.generate(ids[:, :8], attention_mask=torch.ones_like(ids[:, :8]), max_new_tokens=4, do_sample=True, pad_token_id=50256)
    assert made.shape == (8, 12), made.shape
    return model


def lengths():
    """GPT-2 on batches of changing length."""
    from transformers import GPT2Config, GPT2LMHeadModel
    model = GPT2LMHeadModel(GPT2Config(n_layer=6)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for length in (128, 900, 333, 1024, 77, 512):
        ids = torch.randint(0, 50257, (8, length), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def graph():
    """A step as a CUDA graph."""
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.ReLU(), torch.nn.Dropout(0.1)) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images, labels = torch.randn(512, 2048, device="cuda"), torch.randn(512, 2048, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(model(images), labels).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()
    for _ in range(3):
        images.copy_(torch.randn(512, 2048))
        captured.replay()
    torch.cuda.synchronize()
    return model


def lstm():
    model = torch.nn.LSTM(512, 1024, num_layers=2, bidirectional=True, dropout=0.1, batch_first=True).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for length in (100, 150, 80):
        output, _ = model(torch.randn(32, length, 512, device="cuda"))
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def detection():
    """Counts of boxes are results of kernels."""
    from torchvision.models.detection import fasterrcnn_resnet50_fpn
    model = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None).cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(2):
        images = [torch.rand(3, 400, 500).cuda() for _ in range(2)]
        targets = [{"boxes": torch.tensor([[10.0, 10.0, 100.0, 100.0]]).cuda(), "labels": torch.tensor([1]).cuda()} for _ in images]
        loss = sum(model(images, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def resnet():
    """With GradScaler."""
    from torchvision.models import resnet50
    model = resnet50().cuda()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.amp.GradScaler("cuda")
    for _ in range(STEPS):
        images, labels = torch.randn(64, 3, 224, 224).cuda(non_blocking=True), torch.randint(0, 1000, (64,)).cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        loss.item()
    return model


if __name__ == "__main__":
    if sys.argv[1] == "gpt2":
        STEPS = 30
    trained = globals()[sys.argv[1]]()
    print(f"{sys.argv[1]}: {sum(p.numel() for p in trained.parameters())} parameters, {spent}")
