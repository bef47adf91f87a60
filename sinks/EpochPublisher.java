/*
 * Publishes staged rows to Kafka in transactions, from the driver's JVM: rows never pass through Python.
 *
 * This is source, not a jar: kafka_publisher.py compiles it with the Janino compiler that every Spark brings along. Janino
 * knows neither lambdas nor type inference, hence the casts.
 */
package lockstep.kafka;

import java.io.ByteArrayInputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.format.Util;
import org.apache.parquet.hadoop.ParquetReader;
import org.apache.parquet.hadoop.example.GroupReadSupport;
import org.apache.parquet.schema.GroupType;

public class EpochPublisher {

    private final KafkaProducer producer;
    private final Configuration hadoop;
    private volatile Refusal refusal; // the first row that was not taken, in the current transaction

    public EpochPublisher(Map settings, Configuration hadoop) {
        this.producer = new KafkaProducer(settings, new ByteArraySerializer(), new ByteArraySerializer());
        this.hadoop = hadoop;
    }

    /** Fences every earlier producer of this transactional id, and ends the transaction that it may have left. */
    public void initialise() {
        producer.initTransactions();
    }

    public void begin() {
        refusal = null;
        producer.beginTransaction();
    }

    /** Sends the rows of one staged file in their order. Returns how many there were, or stops at the first refusal. */
    public long send(String file, String fixedTopic) throws Exception {
        ParquetReader reader =
            ParquetReader.builder(new GroupReadSupport(), new Path(file)).withConf(hadoop).build();
        try {
            Columns columns = null;
            long row = 0;
            Group group = (Group) reader.read();
            while (refusal == null && group != null) {
                if (columns == null) {
                    columns = new Columns(group.getType());
                }
                producer.send(columns.record(group, fixedTopic), new Receipt(this, file, row));
                row++;
                group = (Group) reader.read();
            }
            return row;
        } finally {
            reader.close();
        }
    }

    /** Adds the record that says what this transaction publishes. */
    public void mark(String topic, String key, String value) throws Exception {
        producer.send(
            new ProducerRecord(topic, Integer.valueOf(0), key.getBytes("UTF-8"), value.getBytes("UTF-8")),
            new Receipt(this, null, 0));
    }

    public void flush() {
        producer.flush();
    }

    public void commit() {
        producer.commitTransaction();
    }

    public void abort() {
        producer.abortTransaction();
    }

    /** Lets go of the connections. An open transaction is left to the next initialise, or to its timeout. */
    public void close() {
        producer.close(Duration.ZERO);
    }

    public boolean refused() {
        return refusal != null;
    }

    public Exception refusalReason() {
        return refusal.reason;
    }

    /** The staged file of the refused row; null when it was the marker. */
    public String refusedFile() {
        return refusal.file;
    }

    public long refusedRow() {
        return refusal.row;
    }

    void refuse(Refusal first) {
        if (refusal == null) {
            refusal = first;
        }
    }

    /**
     * The newest committed value of each key in partition 0 of a compacted topic.
     *
     * With certain, everything that was committed before this call is seen, or the answer is null: somebody's transaction
     * is open there, nothing was read for so long, and what was committed after its beginning is not shown until it ends.
     */
    public static Map newest(Map settings, String topic, boolean certain, long timeoutMs) throws Exception {
        KafkaConsumer consumer = consumer(settings, "read_committed");
        try {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(Collections.singletonList(partition));
            consumer.seekToBeginning(Collections.singletonList(partition));
            long end = endOffset(settings, certain ? "read_uncommitted" : "read_committed", partition);
            long at = -1;
            long deadline = 0;
            Map found = new HashMap();
            while (consumer.position(partition) < end) {
                if (consumer.position(partition) > at) {
                    at = consumer.position(partition);
                    deadline = System.nanoTime() + timeoutMs * 1000000L;
                } else if (System.nanoTime() > deadline) {
                    return null;
                }
                Iterator records = consumer.poll(Duration.ofMillis(100)).iterator();
                while (records.hasNext()) {
                    ConsumerRecord record = (ConsumerRecord) records.next();
                    if (record.key() == null) {
                        continue;
                    }
                    String key = new String((byte[]) record.key(), "UTF-8");
                    byte[] value = (byte[]) record.value();
                    if (value == null) {
                        found.remove(key);
                    } else {
                        found.put(key, new String(value, "UTF-8"));
                    }
                }
            }
            return found;
        } finally {
            consumer.close(Duration.ZERO);
        }
    }

    private static long endOffset(Map settings, String isolation, TopicPartition partition) {
        KafkaConsumer consumer = consumer(settings, isolation);
        try {
            Map ends = consumer.endOffsets(Collections.singletonList(partition));
            return ((Long) ends.get(partition)).longValue();
        } finally {
            consumer.close(Duration.ZERO);
        }
    }

    private static KafkaConsumer consumer(Map settings, String isolation) {
        Map all = new HashMap(settings);
        all.put("isolation.level", isolation);
        return new KafkaConsumer(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** Name, bytes and rows (from the footer) of each file with rows in a staged directory, in the order of their names. */
    public static List staged(String directory, Configuration hadoop) throws Exception {
        Path path = new Path(directory);
        FileStatus[] found = path.getFileSystem(hadoop).listStatus(path);
        Arrays.sort(found);
        List files = new ArrayList();
        for (int i = 0; i < found.length; i++) {
            String name = found[i].getPath().getName();
            if (found[i].isFile() && !name.startsWith("_") && !name.startsWith(".")) {
                long rows = rows(found[i], hadoop);
                if (rows > 0) {
                    files.add(name + "\t" + found[i].getLen() + "\t" + rows);
                }
            }
        }
        return files;
    }

    private static long rows(FileStatus file, Configuration hadoop) throws Exception {
        FSDataInputStream stream = file.getPath().getFileSystem(hadoop).open(file.getPath());
        try {
            byte[] end = new byte[8]; // the footer's length, and a magic word
            stream.readFully(file.getLen() - 8, end);
            int length = ByteBuffer.wrap(end).order(ByteOrder.LITTLE_ENDIAN).getInt();
            byte[] footer = new byte[length];
            stream.readFully(file.getLen() - 8 - length, footer);
            return Util.readFileMetaData(new ByteArrayInputStream(footer), true).getNum_rows();
        } finally {
            stream.close();
        }
    }
}

class Refusal {
    final Exception reason;
    final String file;
    final long row;

    Refusal(Exception reason, String file, long row) {
        this.reason = reason;
        this.file = file;
        this.row = row;
    }
}

class Receipt implements Callback {
    private final EpochPublisher publisher;
    private final String file;
    private final long row;

    Receipt(EpochPublisher publisher, String file, long row) {
        this.publisher = publisher;
        this.file = file;
        this.row = row;
    }

    public void onCompletion(RecordMetadata metadata, Exception exception) {
        if (exception != null) {
            publisher.refuse(new Refusal(exception, file, row));
        }
    }
}

/** Where the columns of a staged file are; those that the sink does not use are not there. */
class Columns {
    private final int topic;
    private final int partition;
    private final int key;
    private final int value;
    private final int timestamp;
    private final int headers;

    Columns(GroupType schema) {
        topic = index(schema, "topic");
        partition = index(schema, "partition");
        key = index(schema, "key");
        value = index(schema, "value");
        timestamp = index(schema, "timestamp");
        headers = index(schema, "headers");
    }

    ProducerRecord record(Group row, String fixedTopic) {
        ProducerRecord record = new ProducerRecord(
            topic < 0 ? fixedTopic : row.getString(topic, 0),
            absent(row, partition) ? null : Integer.valueOf(row.getInteger(partition, 0)),
            absent(row, timestamp) ? null : Long.valueOf(row.getLong(timestamp, 0)),
            absent(row, key) ? null : row.getBinary(key, 0).getBytes(),
            absent(row, value) ? null : row.getBinary(value, 0).getBytes());
        if (!absent(row, headers)) {
            Group list = (Group) row.getGroup(headers, 0);
            int count = list.getFieldRepetitionCount(0);
            for (int i = 0; i < count; i++) {
                Group header = (Group) list.getGroup(0, i);
                if (header.getType().getFieldCount() == 1) { // the list's element; old formats have it right here
                    header = (Group) header.getGroup(0, 0);
                }
                byte[] content = absent(header, 1) ? null : header.getBinary(1, 0).getBytes();
                record.headers().add(header.getString(0, 0), content);
            }
        }
        return record;
    }

    private static int index(GroupType schema, String name) {
        return schema.containsField(name) ? schema.getFieldIndex(name) : -1;
    }

    private static boolean absent(Group row, int column) {
        return column < 0 || row.getFieldRepetitionCount(column) == 0;
    }
}
