// A member with franz-go: see tests/observed/clients/__init__.py.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type settings map[string]string

func (s settings) String() string { return fmt.Sprint(map[string]string(s)) }

func (s settings) Set(setting string) error {
	name, value, _ := strings.Cut(setting, "=")
	s[name] = value
	return nil
}

var out sync.Mutex

func say(event string, words ...string) {
	out.Lock()
	defer out.Unlock()
	fmt.Println(strings.Join(append([]string{fmt.Sprint(time.Now().UnixMilli()), event}, words...), " "))
}

// told makes a listener's call an event.
func told(event string) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, client *kgo.Client, partitions map[string][]int32) {
		var words []string
		for topic, numbers := range partitions {
			for _, number := range numbers {
				words = append(words, fmt.Sprintf("%s:%d", topic, number))
			}
		}
		sort.Strings(words)
		say(event, words...)
		if _, generation := client.GroupMetadata(); event == "came" {
			say("generation", fmt.Sprint(generation))
		}
	}
}

func main() {
	servers := flag.String("servers", "", "")
	group := flag.String("group", "", "")
	clientID := flag.String("client-id", "", "")
	topics := flag.String("topics", "", "")
	instanceID := flag.String("instance-id", "", "")
	given := settings{}
	flag.Var(given, "setting", "session-timeout is the only one")
	flag.Parse()
	session, err := time.ParseDuration(given["session-timeout"])
	if err != nil {
		log.Fatal(err)
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(*servers, ",")...),
		kgo.ClientID(*clientID),
		kgo.ConsumerGroup(*group),
		kgo.ConsumeTopics(strings.Split(*topics, ",")...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(session),
		kgo.HeartbeatInterval(time.Second / 2),
		kgo.MetadataMaxAge(time.Second),
		kgo.MetadataMinAge(time.Second / 2),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(told("came")),
		kgo.OnPartitionsRevoked(told("went")),
		kgo.OnPartitionsLost(told("went")),
	}
	if *instanceID != "" {
		options = append(options, kgo.InstanceID(*instanceID))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		log.Fatal(err)
	}
	polled := make(chan struct{}, 1)
	go func() {
		for {
			client.PollFetches(context.Background())
			select {
			case polled <- struct{}{}:
			default:
			}
		}
	}()
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		command, words, _ := strings.Cut(in.Text(), " ")
		switch command {
		case "subscribe":
			client.AddConsumeTopics(strings.Split(words, ",")...)
		case "commit":
			for len(client.UncommittedOffsets()) == 0 {
				<-polled
			}
			if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
				log.Fatal(err)
			}
			say("committed")
		case "leave":
			client.Close()
			say("ended")
			return
		}
	}
	client.Close()
}
