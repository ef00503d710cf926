package apiserver

import (
	"net/http"

	"k8s.io/apimachinery/pkg/util/uuid"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"macrack.io/macrack/pkg/ledger"
)

// assignRequestIDs replaces the ID of every request with a new one.
func (c *Config) assignRequestIDs() {
	build := c.Generic.BuildHandlerChainFunc
	c.Generic.BuildHandlerChainFunc = func(api http.Handler, config *genericapiserver.Config) http.Handler {
		return withOwnRequestID(build(api, config))
	}
}

// withOwnRequestID replaces the ID of an incoming request, which clients can choose freely, with a
// new one for the audit log, the response and the ledger. The ledger records the original as a
// claim.
func withOwnRequestID(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if claimed := r.Header.Get(auditinternal.HeaderAuditID); claimed != "" {
			r = r.WithContext(ledger.WithClaimedRequestID(r.Context(), claimed))
		}
		r.Header.Set(auditinternal.HeaderAuditID, string(uuid.NewUUID()))
		handler.ServeHTTP(w, r)
	})
}
