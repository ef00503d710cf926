// Package fuzzer generates random durations and quantities for tests, in every form that validation
// accepts.
package fuzzer

import (
	"fmt"

	"sigs.k8s.io/randfill"

	"macrack.io/macrack/pkg/apis/scalar"
)

// Funcs are the fuzzer functions of durations and quantities. A quantity may be unset.
var Funcs = []any{
	func(d *scalar.Duration, c randfill.Continue) {
		d.Text = fmt.Sprintf(pick(c, "%ds", "%dm", "%dh", "%dd", "%dh0m0s", "1d%dm", "%d.5h", "-%dms", "0%dh"), c.Intn(1e6))
	},
	func(q *scalar.Quantity, c randfill.Continue) {
		switch c.Intn(3) {
		case 0:
			*q = scalar.Quantity{}
		case 1:
			*q = scalar.Quantity{Text: fmt.Sprintf(pick(c, "%d", "%d.5", "-%d", "%de3"), 1+c.Intn(1e6)), Number: true}
		default:
			*q = Quantity(c)
		}
	},
}

// Quantity returns a quantity that is set.
func Quantity(c randfill.Continue) scalar.Quantity {
	return scalar.Quantity{Text: fmt.Sprintf(pick(c, "%d", "%dMi", "%dGi", "%dG", "%d000m", "%d.0", "+%dk", "0%d", "%de3"), c.Intn(1e6))}
}

func pick(c randfill.Continue, forms ...string) string { return forms[c.Intn(len(forms))] }
