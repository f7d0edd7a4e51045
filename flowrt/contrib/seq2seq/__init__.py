"""``flowrt.contrib.seq2seq``: sequences that a decoder makes one step after the other, with attention.

loss                 `sequence_loss`
decoding             `Decoder`, `dynamic_decode`: the loop
decoder_inputs       what a decoder reads next: the targets, or what it made itself
basic_decoder        `BasicDecoder`: a cell and a helper
attention            attention mechanisms
attention_wrapper    `AttentionWrapper`: a cell that attends
gather_tree          paths through the beams of a search
beam_search          `BeamSearchDecoder`, `tile_batch`
"""

from flowrt.contrib.seq2seq.attention import (
    AttentionMechanism,
    BahdanauAttention,
    BahdanauMonotonicAttention,
    LuongAttention,
    LuongMonotonicAttention,
    hardmax,
    monotonic_attention,
    safe_cumprod,
)
from flowrt.contrib.seq2seq.attention_wrapper import AttentionWrapper, AttentionWrapperState
from flowrt.contrib.seq2seq.basic_decoder import BasicDecoder, BasicDecoderOutput
from flowrt.contrib.seq2seq.beam_search import (
    BeamSearchDecoder,
    BeamSearchDecoderOutput,
    BeamSearchDecoderState,
    FinalBeamSearchDecoderOutput,
    tile_batch,
)
from flowrt.contrib.seq2seq.decoder_inputs import (
    CustomHelper,
    GreedyEmbeddingHelper,
    Helper,
    InferenceHelper,
    SampleEmbeddingHelper,
    ScheduledEmbeddingTrainingHelper,
    ScheduledOutputTrainingHelper,
    TrainingHelper,
)
from flowrt.contrib.seq2seq.decoding import Decoder, dynamic_decode
from flowrt.contrib.seq2seq.gather_tree import gather_tree
from flowrt.contrib.seq2seq.loss import sequence_loss
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "AttentionMechanism", "AttentionWrapper", "AttentionWrapperState", "BahdanauAttention",
    "BahdanauMonotonicAttention", "BasicDecoder", "BasicDecoderOutput", "BeamSearchDecoder",
    "BeamSearchDecoderOutput", "BeamSearchDecoderState", "CustomHelper", "Decoder",
    "FinalBeamSearchDecoderOutput", "GreedyEmbeddingHelper", "Helper", "InferenceHelper", "LuongAttention",
    "LuongMonotonicAttention", "SampleEmbeddingHelper", "ScheduledEmbeddingTrainingHelper",
    "ScheduledOutputTrainingHelper", "TrainingHelper", "dynamic_decode", "gather_tree", "hardmax",
    "monotonic_attention", "safe_cumprod", "sequence_loss", "tile_batch",
]  # fmt: skip

__getattr__ = missing_from("contrib.seq2seq")
