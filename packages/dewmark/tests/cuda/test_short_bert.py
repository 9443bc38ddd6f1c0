"""The short form of an encoder gives what the encoder gives.

The kernels run on a CUDA device, or with TRITON_INTERPRET=1 on the CPU, slowly, where Triton is installed.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch
from torch.nn.functional import layer_norm, scaled_dot_product_attention

from dewmark.cuda.short_bert import ShortBert, _known, short_bert

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
with_kernels = pytest.mark.skipif(
    not (torch.cuda.is_available() or INTERPRETED), reason="needs a CUDA device, or Triton's interpreter"
)
KINDS = ["Bert", "Roberta", "XLMRoberta"]


def model_of(kind):
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=90,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=80,
        max_position_embeddings=80,
        initializer_range=0.3,
    )
    torch.manual_seed(3)
    return getattr(transformers, f"{kind}Model")(config).eval().to(DEVICE)


def rows(tokens):
    """Ids and mask (5, tokens): one text fills its row, the others do not."""
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(5, 90, (5, tokens), generator=generator)
    lengths = torch.tensor([tokens, 2, 3, max(tokens - 1, 2), 2])
    mask = (torch.arange(tokens) < lengths[:, None]).long()
    return ids.where(mask == 1, 1).to(DEVICE), mask.to(DEVICE)


@with_kernels
@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [3, 8, 24])
def test_vectors_are_the_models(kind, tokens):
    model = model_of(kind)
    ids, mask = rows(tokens)
    found, expected = ShortBert(model)(ids, mask), model(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(found[mask == 1], expected[mask == 1], rtol=1e-4, atol=1e-4)


@with_kernels
@pytest.mark.parametrize("tokens", [1, 8, 33, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention(tokens, dtype):
    from dewmark.cuda.encoder_kernels import attend

    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies no bfloat16")

    heads, head = 3, 20
    qkv = torch.randn(5, tokens, 3 * heads * head, generator=torch.Generator().manual_seed(0))
    qkv, (_, mask) = qkv.to(DEVICE, dtype), rows(tokens)
    q, k, v = qkv.float().view(5, tokens, 3, heads, head).permute(2, 0, 3, 1, 4)
    expected = scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :] == 1)
    expected = expected.transpose(1, 2).reshape(5, tokens, -1)
    between = torch.stack((mask, 1 - mask), dim=1)[:, 0]  # the rows are apart in memory
    found = attend(qkv, between, heads=heads).float()
    # bfloat16 keeps 8 bits: shares and result are each rounded by at most 2^-9 of values up to 4
    within = 1e-5 if dtype == torch.float32 else 4 * 2 * 2**-9
    torch.testing.assert_close(found, expected, rtol=0, atol=within)


@with_kernels
def test_a_sum_is_normalised():
    from dewmark.cuda.encoder_kernels import add_norm

    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, 3, 50, generator=generator).to(DEVICE) for _ in range(2))
    norm = torch.nn.LayerNorm(50, eps=1e-3).to(DEVICE)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2.0, 50))
        norm.bias.copy_(torch.linspace(-1.0, 1.0, 50))
        expected = layer_norm(x + y, (50,), norm.weight, norm.bias, norm.eps)
        torch.testing.assert_close(add_norm(x, y, norm), expected, rtol=1e-5, atol=1e-5)


def test_only_known_encoders_on_cuda_have_a_short_form():
    from transformers import DistilBertConfig, DistilBertModel

    other = DistilBertModel(DistilBertConfig(vocab_size=90, dim=16, n_layers=1, n_heads=2, hidden_dim=32))
    assert short_bert(other.to(DEVICE)) is None
    assert short_bert(model_of("Bert").cpu()) is None
    assert (short_bert(model_of("Bert")) is not None) == (DEVICE.type == "cuda")


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_not_plain_are_left_to_the_model(kind):
    class Adapted(torch.nn.Linear):
        """Stands for a layer that adds something to its product, or keeps its weights packed."""

    model = model_of(kind)
    assert _known(model)
    model.encoder.layer[1].attention.self.value = Adapted(48, 48)
    assert not _known(model)
