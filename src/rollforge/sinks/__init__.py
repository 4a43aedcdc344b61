"""Sinks: destinations of metrics. One file per member, one line here."""

from rollforge.registry import Registry

SINKS = Registry(
    "sinks",
    {
        "console": "rollforge.sinks.console:ConsoleSink",
        "jsonl": "rollforge.sinks.jsonl:JsonlSink",
        "mlflow": "rollforge.sinks.mlflow:MlflowSink",
        "otel": "rollforge.sinks.otel:OtelSink",
        "prometheus": "rollforge.sinks.prometheus:PrometheusSink",
        "tensorboard": "rollforge.sinks.tensorboard:TensorboardSink",
        "wandb": "rollforge.sinks.wandb:WandbSink",
    },
)
