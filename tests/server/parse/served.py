"""A served model to check requests against."""

from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams
from glimpse.media.kind import MediaKind
from glimpse.server.served_model import ServedModel

MODEL = ServedModel(
    names=("tiny",),
    vocab_size=384,
    embedding_size=4096,
    pooling=PoolingParams(mode=PoolingMode.MEAN, normalize=False),
    max_media={MediaKind.IMAGE: 2, MediaKind.VIDEO: 1},
    supports_tools=True,
)
