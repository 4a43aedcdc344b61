"""Exporters: one per trainer that can read a dataset. One file per member, one line here."""

from rollforge.registry import Registry

EXPORTERS = Registry(
    "exporters",
    {
        "atif": "rollforge.exporters.atif:AtifExporter",
        "axolotl": "rollforge.exporters.axolotl:AxolotlExporter",
        "chat": "rollforge.exporters.chat:ChatExporter",
        "gym": "rollforge.exporters.gym:GymExporter",
        "llama-factory": "rollforge.exporters.llama_factory:LlamaFactoryExporter",
        "nemo-rl": "rollforge.exporters.nemo_rl:NemoRlExporter",
        "openrlhf": "rollforge.exporters.openrlhf:OpenRlhfExporter",
        "trl": "rollforge.exporters.trl:TrlExporter",
        "verl": "rollforge.exporters.verl:VerlExporter",
    },
)
