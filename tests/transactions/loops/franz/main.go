// The loop with franz-go: consume, transform, produce, with offsets in transactions.
package main

import (
	"context"
	"flag"
	"log"
	"math/rand"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const aborted = 0.1 // the share of the transactions that the loop aborts by itself

func main() {
	servers := flag.String("servers", "", "")
	group := flag.String("group", "", "")
	input := flag.String("input-topic", "", "")
	output := flag.String("output-topic", "", "")
	id := flag.String("transactional-id", "", "")
	records := flag.Int("records", 0, "the largest number of records of a transaction")
	timeoutMs := flag.Int("timeout-ms", 0, "")
	flag.Parse()
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(*servers, ",")...),
		kgo.TransactionalID(*id),
		kgo.TransactionTimeout(time.Duration(*timeoutMs)*time.Millisecond),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.ConsumerGroup(*group),
		kgo.ConsumeTopics(*input),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(10*time.Second),
		kgo.HeartbeatInterval(time.Second),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.DefaultProduceTopic(*output),
	)
	if err != nil {
		log.Fatal(err)
	}
	for {
		if err := copyOnce(session, *records); err != nil {
			log.Fatal(err) // it is started again
		}
	}
}

// copyOnce copies some records in one transaction.
func copyOnce(session *kgo.GroupTransactSession, records int) error {
	ctx := context.Background()
	fetches := session.PollRecords(ctx, records)
	for _, failed := range fetches.Errors() {
		log.Printf("%s-%d: %v", failed.Topic, failed.Partition, failed.Err)
	}
	if fetches.NumRecords() == 0 {
		return nil
	}
	if err := session.Begin(); err != nil {
		return err
	}
	promise := kgo.AbortingFirstErrPromise(session.Client())
	fetches.EachRecord(func(record *kgo.Record) {
		copied := &kgo.Record{Partition: record.Partition, Key: record.Key, Value: record.Value}
		session.Produce(ctx, copied, promise.Promise())
	})
	wanted := promise.Err() == nil && rand.Float64() >= aborted
	committed, err := session.End(ctx, kgo.TransactionEndTry(wanted))
	if err == nil && !committed {
		log.Printf("aborted %d records", fetches.NumRecords())
	}
	return err
}
