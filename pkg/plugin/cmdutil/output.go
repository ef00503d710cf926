package cmdutil

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"
)

// APIVersion is the version of the data that commands print with -o json. Fields are added, but not
// renamed or removed, while it stays the same.
const APIVersion = "plugin.macrack.io/v1alpha1"

// An Output is the value of the flag -o.
type Output string

// Formats of the output.
const (
	ForPeople Output = ""
	JSON      Output = "json"
	YAML      Output = "yaml"
)

// AddFlag adds the flag -o.
func (o *Output) AddFlag(flags *pflag.FlagSet) {
	flags.VarP(o, "output", "o", "Print the data instead: json or yaml.")
}

// String returns the format.
func (o *Output) String() string { return string(*o) }

// Set sets the format.
func (o *Output) Set(text string) error {
	switch Output(text) {
	case ForPeople, JSON, YAML:
		*o = Output(text)
		return nil
	}
	return fmt.Errorf("unknown format %q; use json or yaml", text)
}

// Type returns the name of the type in the help.
func (*Output) Type() string { return "format" }

// Print prints data in the format.
func (o *Output) Print(out io.Writer, data any) error {
	text, err := json.MarshalIndent(data, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if *o == YAML {
		if text, err = yaml.JSONToYAML(text); err != nil {
			return err
		}
	}
	_, err = out.Write(text)
	return err
}

// Time returns a time as in the API.
func Time(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Span returns a duration for people, such as 23h.
func Span(d time.Duration) string { return duration.HumanDuration(d) }

// Print prints lines.
func Print(out io.Writer, lines []string) error {
	for _, line := range lines {
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}
