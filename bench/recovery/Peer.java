import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/**
 * The peer of bench.recovery: Kafka Streams, exactly_once_v2, one thread, RocksDB, as its documentation says.
 *
 * <p>{@code table BOOTSTRAP APP TOPIC DIR}: a read-only store whose changelog is TOPIC; restores it, prints, ends.
 *
 * <p>{@code fold BOOTSTRAP APP TOPIC DIR EVENTS}: a session store with its own changelog: count and the last
 * {@link #WINDOW} payloads of every key. Starts (restoring what there is), processes EVENTS events, prints, ends.
 *
 * <p>One JSON line on stdout for each of: live, folded. Times are wall clock, ms since the epoch.
 */
public final class Peer {
  /** Messages a session keeps. */
  static final int WINDOW = 8;

  static final String STORE = "state";
  static final AtomicLong PROCESSED = new AtomicLong();
  static final CountDownLatch DONE = new CountDownLatch(1);
  static long events;

  static final class Fold implements Processor<byte[], byte[], Void, Void> {
    private KeyValueStore<byte[], byte[]> store;

    @Override
    public void init(ProcessorContext<Void, Void> context) {
      store = context.getStateStore(STORE);
    }

    @Override
    public void process(Record<byte[], byte[]> record) {
      byte[] before = store.get(record.key());
      store.put(record.key(), next(before, record.value()));
      if (PROCESSED.incrementAndGet() == events) {
        DONE.countDown();
      }
    }

    /** seq (8 bytes), then the payloads, each behind its length (4 bytes), oldest first. */
    static byte[] next(byte[] before, byte[] payload) {
      long seq = 1;
      int from = 8;
      int size = 8;
      if (before != null) {
        ByteBuffer old = ByteBuffer.wrap(before);
        seq = old.getLong() + 1;
        size = before.length;
        if (seq > WINDOW) {
          int dropped = 4 + old.getInt(8);
          from += dropped;
          size -= dropped;
        }
      }
      ByteBuffer after = ByteBuffer.allocate(size + 4 + payload.length);
      after.putLong(seq);
      if (before != null) {
        after.put(before, from, before.length - from);
      }
      after.putInt(payload.length).put(payload);
      return after.array();
    }
  }

  /** Keeps a table as it is in its topic. */
  static final class Keep implements Processor<byte[], byte[], Void, Void> {
    private KeyValueStore<byte[], byte[]> store;

    @Override
    public void init(ProcessorContext<Void, Void> context) {
      store = context.getStateStore(STORE);
    }

    @Override
    public void process(Record<byte[], byte[]> record) {
      store.put(record.key(), record.value());
    }
  }

  static final class Restores implements StateRestoreListener {
    final AtomicLong records = new AtomicLong();
    volatile long firstMs;
    volatile long lastMs;

    @Override
    public synchronized void onRestoreStart(TopicPartition tp, String store, long from, long to) {
      if (firstMs == 0) {
        firstMs = System.currentTimeMillis();
      }
    }

    @Override
    public void onBatchRestored(TopicPartition tp, String store, long end, long count) {
      records.addAndGet(count);
    }

    @Override
    public synchronized void onRestoreEnd(TopicPartition tp, String store, long total) {
      lastMs = System.currentTimeMillis();
    }
  }

  public static void main(String[] arguments) throws Exception {
    String mode = arguments[0];
    String topic = arguments[3];
    events = arguments.length > 5 ? Long.parseLong(arguments[5]) : 0;

    Properties settings = new Properties();
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[1]);
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[2]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[4]);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
    settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
    settings.put("consumer.auto.offset.reset", "earliest");
    // As refold's producer; without it its changelog would be several times as long on the wire.
    settings.put("producer.compression.type", "lz4");
    // Kafka Streams leaves its members to time out when it is closed (45 s until another run can start).
    settings.put("main.consumer.internal.leave.group.on.close", true);

    StoreBuilder<KeyValueStore<byte[], byte[]>> store =
        Stores.keyValueStoreBuilder(
            Stores.persistentKeyValueStore(STORE), Serdes.ByteArray(), Serdes.ByteArray());
    ByteArrayDeserializer bytes = new ByteArrayDeserializer();
    Topology topology = new Topology();
    if (mode.equals("table")) {
      topology.addReadOnlyStateStore(store, "in", bytes, bytes, topic, "keep", Keep::new);
    } else {
      topology
          .addSource("in", bytes, bytes, topic)
          .addProcessor("fold", Fold::new, "in")
          .addStateStore(store.withCachingEnabled(), "fold");
    }

    KafkaStreams streams = new KafkaStreams(topology, settings);
    Restores restores = new Restores();
    CountDownLatch live = new CountDownLatch(1);
    streams.setGlobalStateRestoreListener(restores);
    streams.setUncaughtExceptionHandler(
        error -> {
          error.printStackTrace();
          Runtime.getRuntime().halt(1);
          return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
    streams.setStateListener(
        (now, before) -> {
          if (now == KafkaStreams.State.RUNNING) {
            live.countDown();
          }
        });
    streams.start();
    live.await();
    System.out.printf(
        "{\"event\":\"live\",\"at_ms\":%d,\"restore_first_ms\":%d,\"restore_last_ms\":%d,\"records\":%d}%n",
        System.currentTimeMillis(), restores.firstMs, restores.lastMs, restores.records.get());
    System.out.flush();
    if (events > 0) {
      DONE.await();
    }
    streams.close(Duration.ofSeconds(60));
    System.out.printf("{\"event\":\"closed\",\"processed\":%d}%n", PROCESSED.get());
  }
}
