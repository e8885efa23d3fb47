"""rehearse_models.py MODEL: an unmodified training program for tests/support/rehearse_check.py: models of transformers and torchvision with
random weights, as their documentation trains them. The last line says what was trained, how much memory the imports took and how long the
steps of text() computed."""
import resource
import sys
import time

import torch

spent = {}  # seconds, and KiB


def note_imports():
    spent["imports"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss



def text(config, model_class, batch, length, steps=3, checkpointing=False):
    note_imports()
    model = model_class(config).cuda()
    begun = time.process_time()
    if checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model.train()
    for _ in range(steps):
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
    return text(GPT2Config(), GPT2LMHeadModel, 8, 1024, steps=30)


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4,
                         max_position_embeddings=2048, use_cache=False)
    return text(config, LlamaForCausalLM, 4, 1024, checkpointing=True)


def bert():
    """By transformers' Trainer."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
    data = [{"input_ids": torch.randint(0, 30000, (128,)), "labels": torch.tensor(i % 2)} for i in range(64)]
    model = BertForSequenceClassification(BertConfig())
    Trainer(model=model, train_dataset=data,
            args=TrainingArguments(output_dir="bert", max_steps=4, per_device_train_batch_size=16, report_to=[], save_strategy="no", fp16=True)).train()
    return model


def resnet():
    """With GradScaler."""
    from torchvision.models import resnet50
    model = resnet50().cuda()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.amp.GradScaler("cuda")
    for _ in range(3):
        images, labels = torch.randn(64, 3, 224, 224).cuda(non_blocking=True), torch.randint(0, 1000, (64,)).cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        loss.item()
    return model


trained = globals()[sys.argv[1]]()
print(f"{sys.argv[1]}: {sum(p.numel() for p in trained.parameters())} parameters, {spent}")
