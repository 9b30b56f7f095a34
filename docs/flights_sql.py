"""Three questions about flights, asked of the log by Spark SQL: `python docs/flights_sql.py`.

Shows: a store as a view, bodies of CSV as typed columns, SQL over them, and `operations`, what the
log says about its topics minute by minute. It sends the 336,776 flights of the demo to a broker of
its own first; with HOME/store as an argument it asks a store that has them. Cells begin at `# %%`.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gantrymq import Broker, Producer
from gantrymq.spark import operations, session
from scripts.demo_flights import TOPIC, flights

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# %% The bodies: lines of CSV, `NA` where a flight was cancelled
SCHEMA = """year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT,
    arr_time INT, sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING,
    origin STRING, dest STRING, air_time INT, distance INT, hour INT, minute INT,
    time_hour TIMESTAMP"""

# %% The questions
QUESTIONS = {
    "Which hour of the day is the best to leave at?": """
        SELECT hour, count(*) AS flights, round(avg(dep_delay), 1) AS mean_delay_min,
            round(100 * avg(INT(dep_delay IS NULL)), 1) AS cancelled_percent
        FROM flights GROUP BY hour HAVING count(dep_delay) > 0
        ORDER BY mean_delay_min, hour LIMIT 5""",
    "Which carriers make up for a late start in the air?": """
        SELECT carrier, count(*) AS late_starts, round(avg(dep_delay - arr_delay), 1) AS gained_min
        FROM flights WHERE dep_delay > 15 AND arr_delay IS NOT NULL
        GROUP BY carrier ORDER BY gained_min DESC, carrier LIMIT 5""",
    "Which day had the most cancelled flights?": """
        SELECT make_date(year, month, day) AS date, count(*) AS flights,
            count_if(dep_delay IS NULL) AS cancelled
        FROM flights GROUP BY ALL ORDER BY cancelled DESC, date LIMIT 5""",
}


# %% The log as a view
def make_view(spark: SparkSession, store: str) -> None:
    """View `flights`: a row for each message of the topic."""
    words = {"store": store, "topic": TOPIC, "columns": "body", "includeActive": "true"}
    messages = spark.read.format("gantrymq").options(**words, bodyFormat="utf8").load()
    line = f"from_csv(body, '{SCHEMA}', map('nullValue', 'NA')) AS flight"
    messages.selectExpr(line).select("flight.*").createOrReplaceTempView("flights")


# %% A store that has them
def send_flights(home: Path) -> None:
    """All flights of the demo, one message each."""
    with Producer(home) as producer:
        for flight in flights():
            producer.send_oneway(TOPIC, flight.line, tag=flight.carrier)
        producer.flush(timeout=60.0)


# %% The answers
def main(arguments: list[str]) -> None:
    """Ask, and print."""
    with ExitStack() as stack:
        if arguments:
            store = arguments[0]
        else:
            broker = stack.enter_context(Broker.temporary())
            send_flights(broker.home)
            store = f"{broker.home}/store"
        spark = session("flights")
        stack.callback(spark.stop)
        make_view(spark, store)
        for question, query in QUESTIONS.items():
            print(question)
            spark.sql(query).show()
        print("What the log says of its topics:")
        operations(spark, store).orderBy("topic", "minute").show(truncate=False)


if __name__ == "__main__":
    main(sys.argv[1:])
