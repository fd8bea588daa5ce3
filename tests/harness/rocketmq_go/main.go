// RocketMQ's Go clients, for rocketmq_go_clients.py. Its arguments are the name server, the group, the topic, the names of
// consumers, separated by commas, and "orderly" or "concurrently". It prints a line for each message: the consumer, the queue
// and the body. A line of standard input is a body to send. It leaves the group and ends with its input.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var printing sync.Mutex

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func say(words ...any) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(words...)
}

func main() {
	rlog.SetLogLevel("error")
	server, group, topic := []string{os.Args[1]}, os.Args[2], os.Args[3]
	var started []rocketmq.PushConsumer
	for _, name := range strings.Split(os.Args[4], ",") {
		one, err := rocketmq.NewPushConsumer(
			consumer.WithNameServer(server), consumer.WithGroupName(group), consumer.WithInstance(name),
			consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithConsumerOrder(os.Args[5] == "orderly"))
		must(err)
		must(one.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				say(name, fmt.Sprintf("%s:%d", message.Queue.BrokerName, message.Queue.QueueId), message.QueueOffset, string(message.Body))
			}
			return consumer.ConsumeSuccess, nil
		}))
		must(one.Start())
		started = append(started, one)
	}
	sender, err := rocketmq.NewProducer(producer.WithNameServer(server), producer.WithGroupName(group+"-producer"), producer.WithInstanceName("sender"))
	must(err)
	must(sender.Start())
	say("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		_, err := sender.SendSync(context.Background(), primitive.NewMessage(topic, []byte(lines.Text())))
		must(err)
	}
	for _, one := range started {
		must(one.Shutdown())
	}
	must(sender.Shutdown())
}
