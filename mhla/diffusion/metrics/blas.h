// The BLAS and LAPACK routines that this room calls. Matrices are column-major there, so a row-major [rows, columns]
// matrix is passed as its transpose. Arguments are 32-bit, as Debian builds them. Private to this room.
#pragma once

extern "C" {
// c = alpha op(a) op(b) + beta c
void dgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k, const double* alpha,
            const double* a, const int* lda, const double* b, const int* ldb, const double* beta, double* c,
            const int* ldc);
// c = alpha a a^T + beta c (trans 'N'), one triangle
void dsyrk_(const char* uplo, const char* trans, const int* n, const int* k, const double* alpha, const double* a,
            const int* lda, const double* beta, double* c, const int* ldc);
// P^T a P = l l^T of a positive semidefinite matrix with its rank, largest pivots first
void dpstrf_(const char* uplo, const int* n, double* a, const int* lda, int* piv, int* rank, const double* tol,
             double* work, int* info);
}

namespace mhla {

// products[i, j] = a[i] . b[j] of row-major a [rows, d] and b [columns, d]
inline void row_products(const double* a, int rows, const double* b, int columns, int d, double* products) {
  const double one = 1.0, zero = 0.0;
  dgemm_("T", "N", &columns, &rows, &d, &one, b, &d, a, &d, &zero, products, &columns);
}

}  // namespace mhla
