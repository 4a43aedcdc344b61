"""The bridge beside Trinity-RFT's own classes, where it is installed (it is no dependency)."""

import numpy as np
import pytest

from rollforge.buffer.trinity import read_trinity, write_trinity
from rollforge.experience import Experience

sql_schema = pytest.importorskip("trinity.buffer.schema.sql_schema", reason="trinity-rft is not installed")
sqlalchemy = pytest.importorskip("sqlalchemy", reason="trinity-rft is not installed")


@pytest.fixture
def tables():
    meta = type("Meta", (sql_schema.ExperienceModel,), {"__tablename__": "bridge"})
    blob = type("Blob", (sql_schema.BlobModel,), {"__tablename__": "bridge_blob"})
    return meta, blob


def test_trinity_reads_what_we_wrote_and_we_read_what_it_wrote(tables, tmp_path):
    from sqlalchemy.orm import Session

    meta, blob = tables
    ours = Experience(
        id="m/3/0",
        task="m/3",
        run="m/3/0",
        reward=1.0,
        fidelity="exact",
        tokens=np.array([1, 2, 3, 4], dtype=np.int32),
        prompt_length=2,
        mask=np.array([True, False]),
        logprobs=np.array([-0.5, 0.0], dtype=np.float32),
        advantage=0.5,
        model_version=3,
    )
    write_trinity(tmp_path / "ours.db", [ours], table="bridge")
    with Session(sqlalchemy.create_engine(f"sqlite:///{tmp_path}/ours.db")) as session:
        waiting = (
            sqlalchemy.select(meta, blob.experience_bytes)
            .join(blob, blob.id == meta.id)
            .where(meta.consumed == 0)
        )
        ((row, data),) = session.execute(waiting).all()
        theirs = row.to_experience(data)
    assert theirs.tokens.tolist() == [1, 2, 3, 4]
    assert theirs.action_mask.tolist() == [True, False]
    assert (theirs.reward, theirs.info["model_version"], theirs.eid.tid) == (1.0, 3, "m/3")
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/theirs.db")
    sql_schema.Base.metadata.create_all(engine)
    with Session(engine) as session:
        row = meta.from_experience(theirs)
        session.add(row)
        session.flush()
        session.add(blob(id=row.id, experience_bytes=theirs.serialize()))
        session.commit()
    (again,) = read_trinity(tmp_path / "theirs.db", table="bridge")
    assert (again.id, again.reward, again.tokens.tolist()) == ("m/3/0", 1.0, [1, 2, 3, 4])
