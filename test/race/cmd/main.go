// Command race runs the race proof. Its last line has the numbers of attempts and of violations; it
// fails if there are violations.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"macrack.io/macrack/test/race"
)

func main() {
	race.Child()
	debug.SetGCPercent(400)
	logging := flag.NewFlagSet("klog", flag.PanicOnError) // client-go logs every lost connection to a killed process
	klog.InitFlags(logging)
	_ = logging.Set("logtostderr", "false")
	_ = logging.Set("stderrthreshold", "FATAL")
	klog.SetOutput(io.Discard)
	options := race.NewOptions("")
	options.Out = os.Stdout
	pflag.Int64Var(&options.Attempts, "attempts", 1_000_000, "total number of requests")
	pflag.DurationVar(&options.Limit, "limit", 0, "time limit for the requests; 0 for none")
	pflag.IntVar(&options.Clients, "clients", options.Clients, "number of concurrent clients")
	pflag.IntVar(&options.Macs, "macs", options.Macs, "number of Macs; an even number")
	pflag.DurationVar(&options.KillEvery, "kill-every", 20*time.Second, "interval at which a process is killed; 0 for never")
	pflag.IntVar(&options.Cancel, "cancel", options.Cancel, "percentage of cancelled requests")
	pflag.IntVar(&options.Sample, "sample", options.Sample, "check the history of every nth lease and Mac for linearizability")
	pflag.StringVar(&options.Dir, "dir", "", "directory of the data and the logs; if empty, a temporary one, removed on success")
	refusals := pflag.Bool("refusals", false, "print examples of refusals")
	pflag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, options, *refusals))
}

func run(ctx context.Context, options race.Options, refusals bool) int {
	temporary := options.Dir == ""
	if temporary {
		var err error
		if options.Dir, err = os.MkdirTemp("", "macrack-race-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
	}
	result, err := race.Run(ctx, options)
	if err != nil {
		fmt.Fprintf(os.Stderr, "race: failed to run: %v\nData and logs are in %s\n", err, options.Dir)
		return 2
	}
	fmt.Printf("%-28s %10s %10s %10s %10s\n", "ATTEMPT", "SUCCESSES", "REFUSALS", "CONFLICTS", "UNKNOWN")
	for _, kind := range slices.Sorted(maps.Keys(result.Kinds)) {
		n := result.Kinds[kind]
		fmt.Printf("%-28s %10d %10d %10d %10d\n", kind, n[0], n[1], n[2], n[3])
		if refusals {
			seen := map[string]int{}
			for _, message := range result.Refused[kind] {
				seen[race.Generalize(message)]++
			}
			for _, message := range slices.Sorted(maps.Keys(seen)) {
				fmt.Printf("    %4d %s\n", seen[message], message)
			}
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(result.Records)) {
		fmt.Printf("%-28s %10d records\n", kind, result.Records[kind])
	}
	fmt.Printf("checked %d revisions of etcd, %d acknowledgements, the histories of %d leases and Macs with %d operations (%d undecided); %d processes were killed; %s (%.0f attempts a second)\n",
		result.Revisions, result.Acks, result.Tables, result.Operations, result.Undecided, result.Kills, result.Took.Round(time.Second), float64(result.Attempts)/result.Took.Seconds())
	fmt.Printf("the servers' own report: %s, %d records, %d leases, %d starts of VMs, at most %d at once on a Mac, %d refusals\n",
		result.Report.Verdict, result.Report.Records, result.Report.Leases, result.Report.VMStarts, result.Report.MaxVMs, result.Report.Rejected)
	for _, violation := range result.First {
		fmt.Println(violation)
	}
	if result.Violations > 0 {
		fmt.Println("data and logs are in", options.Dir)
	} else if temporary {
		_ = os.RemoveAll(options.Dir)
	}
	fmt.Println(result)
	if result.Violations > 0 {
		return 1
	}
	return 0
}
