package testbed

import (
	"fmt"
	"net/http"
	"time"
)

// maxAdvance keeps years at four digits.
const maxAdvance = 10 * 365 * 24 * time.Hour

// ClockHandler answers GET /clock with the time, and POST /clock/advance?d=24h with the advanced
// time. Times are in RFC 3339, in UTC.
func (tb *Testbed) ClockHandler() http.Handler { return clockHandler(tb.Clock.Now, tb.Advance) }

func clockHandler(now func() time.Time, advance func(time.Duration)) http.Handler {
	mux := http.NewServeMux()
	show := func(w http.ResponseWriter) { fmt.Fprintln(w, now().UTC().Format(time.RFC3339Nano)) }
	mux.HandleFunc("GET /clock", func(w http.ResponseWriter, _ *http.Request) { show(w) })
	mux.HandleFunc("POST /clock/advance", func(w http.ResponseWriter, r *http.Request) {
		d, err := time.ParseDuration(r.FormValue("d"))
		switch {
		case err != nil:
			http.Error(w, fmt.Sprintf("d is %q; use a duration such as 24h or 90m: POST /clock/advance?d=24h", r.FormValue("d")), http.StatusBadRequest)
		case d < 0 || d > maxAdvance:
			http.Error(w, fmt.Sprintf("d is %s; use 0 to %s, because time does not run backwards", d, maxAdvance), http.StatusBadRequest)
		default:
			advance(d)
			show(w)
		}
	})
	return mux
}
